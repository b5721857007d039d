"""What the tuner tells of its way: plans that steps have run, what they took, and what it says."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from math import isfinite
from statistics import median

from legato.live.facts import MarkerKind, Trial, TuningState
from legato.sim.cluster import Cluster
from legato.tuning.candidate import Candidate
from legato.tuning.statistics import Statistics
from legato.tuning.twin.transports import measured_cluster
from legato.tuning.twin.twin import Prediction

RECENT_STEPS = 30
"""Of a plan, whose median is shown."""
MAX_PATH = 100
BOUND_WINDOWS = 5
"""Of ten steps each. Whatever else the machine does makes layers slower, never faster: the shortest T* is the right
one, until links or computation have changed for as long."""

Mark = Callable[[MarkerKind, str, int | None], None]


class TuningFacts:
    """Told by rank 0's tuning, from its threads; asked by the monitor's."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._trials: dict[Candidate, tuple[int, deque[float]]] = {}
        self._path: deque[Candidate] = deque(maxlen=MAX_PATH)
        self._predictions: tuple[tuple[str, int | None, int | None, float], ...] = ()
        self._said = ""
        self._changed = False
        self._bounds_s: deque[float] = deque(maxlen=BOUND_WINDOWS)

    def ran(self, candidate: Candidate, step_s: float) -> None:
        """A step is over."""
        with self._lock:
            if candidate not in self._trials:
                self._trials[candidate] = (0, deque(maxlen=RECENT_STEPS))
            if not self._path or self._path[-1] != candidate:
                self._path.append(candidate)
            count, times = self._trials[candidate]
            self._trials[candidate] = (count + 1, times)
            if isfinite(step_s):
                times.append(step_s)
            self._changed = True

    def measured(self, statistics: Statistics, shape: Cluster) -> None:
        """A window is over. Where nothing was waited for, T* is what computing takes.

        Layers and links are measured under load, so they may add up to more than a step takes; T* may not.
        """
        cluster = measured_cluster(shape, statistics)
        workload = statistics.workload
        bound_s = workload.compute_s if cluster is None else workload.bound_s(cluster.seconds_per_byte)
        self._bounds_s.append(min(bound_s, statistics.iteration_s))

    @property
    def bound_s(self) -> float | None:
        """T*, by the windows that were measured lately; None before the first."""
        return min(self._bounds_s, default=None)

    def predicted(self, predictions: Iterable[Prediction]) -> None:
        """What the twin has simulated."""
        with self._lock:
            self._predictions = tuple(
                (each.candidate.policy, each.candidate.partition_bytes, each.candidate.credit_bytes, each.iteration_s)
                for each in predictions
            )
            self._changed = True

    def planned(self, candidate: Candidate, from_step: int) -> None:
        """All ranks have agreed to follow it."""
        self._mark("plan", str(candidate), from_step)

    def said(self, text: str, *, is_warning: bool = False) -> None:
        """For the log, and for whoever looks."""
        with self._lock:
            self._said = text
            self._changed = True
        if not is_warning:  # the log's warnings are marked as such
            self._mark("tuner", text, None)

    def take(self) -> TuningState | None:
        """Where it stands, if that has changed since the last call."""
        with self._lock:
            if not self._changed:
                return None
            self._changed = False
            order = list(self._trials)
            return TuningState(
                trials=tuple(
                    Trial(
                        policy=each.policy,
                        partition_bytes=each.partition_bytes,
                        credit_bytes=each.credit_bytes,
                        num_steps=count,
                        step_s=median(times) if times else None,
                    )
                    for each, (count, times) in self._trials.items()
                ),
                path=tuple(order.index(each) for each in self._path),
                predictions=self._predictions,
                said=self._said,
            )
