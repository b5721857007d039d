"""The digital twin: the simulator, fitted to what was measured, searched between two steps.

statistics ──► rates ──► cluster, workload ──► search ──► predictions, each with its error
                                                         ▲
                                 measured / simulated ───┘ of the plan that ran: what the model leaves out
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log

from legato.core import Workload
from legato.errors import InputError
from legato.sim.cluster import Architecture, Cluster, Ownership
from legato.tuning.candidate import BASELINE, Candidate, Space
from legato.tuning.live.guard import Trigger
from legato.tuning.statistics import Statistics
from legato.tuning.twin.search import search, simulated_s
from legato.tuning.twin.transports import measured_cluster

TWIN_TRIGGER = Trigger(gain=0.01)
"""A switch costs nothing here, a plan starts at its step without restart: so much less gain is worth one."""
UNTRIED_ERROR = 0.10
"""Relative error of a prediction before the first one was put to the test."""
MEMORY = 0.5
"""Weight of the predictions before in what is known of their errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a candidate would make of a step."""

    candidate: Candidate
    iteration_s: float
    error: float
    """Relative standard error: what predictions were wrong by lately."""

    def __str__(self) -> str:
        return f"{self.iteration_s * 1e3:.1f} ms ± {self.error:.0%}"


class Twin:
    """A tuner that tries plans in simulation. It settles within two or three windows and follows what changes."""

    def __init__(
        self,
        space: Space,
        shape: Cluster,
        *,
        start: Candidate | None = None,
        trigger: Trigger = TWIN_TRIGGER,
    ) -> None:
        """`start` is what runs already, of the space or not; without it, the space says where to begin.

        With a `trigger` of a percent, a search went after 3 % of noise for up to 11 windows.
        """
        self._space = space
        self._shape = shape
        self._trigger = trigger
        self._model: tuple[Workload, Cluster] | None = None
        self._simulated: Mapping[Candidate, float] = {}
        self._measured: dict[Candidate, float] = {}
        self._scale = 1.0
        self._variance = UNTRIED_ERROR**2
        self._choice = start or space.start
        self._settled = False

    def ask(self) -> Candidate:
        return self._choice

    def tell(self, statistics: Statistics) -> None:
        present, measured_s = statistics.candidate, statistics.iteration_s
        if present in self._measured and self._trigger.has_drifted(self._measured[present], measured_s):
            # The same plan is no longer what it was: the world has changed, and what was learnt of it is old.
            self._measured.clear()
        cluster = measured_cluster(self._shape, statistics)
        if cluster is None:
            return
        if present in self._simulated:
            self._judge(self._simulated[present] * self._scale, measured_s)
        self._measured[present] = measured_s
        self._model = statistics.workload, cluster
        also = {present, self._choice, min(self._measured, key=self._measured.__getitem__)}
        self._simulated = search(*self._model, self._space, also=also)
        self._scale = measured_s / self._simulated[present]
        best = min(self._simulated, key=self._expected_s)
        if self._trigger.worth_switching(self._expected_s(self._choice), self._expected_s(best)):
            self._choice = best
        self._settled = self._choice == present

    def _judge(self, predicted_s: float, measured_s: float) -> None:
        """A prediction was put to the test."""
        wrong = log(measured_s / predicted_s)
        self._variance = MEMORY * self._variance + (1 - MEMORY) * wrong * wrong

    def _expected_s(self, candidate: Candidate) -> float:
        """What was measured counts more than what is simulated."""
        return self._measured.get(candidate) or self._simulated[candidate] * self._scale

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def baseline_s(self) -> float | None:
        """What the baseline would take over these links if it lost nothing; None before anything was measured."""
        if self._model is None:
            return None
        # In parts like what runs: whole tensors would each go to one owner.
        return simulated_s(*self._model, replace(BASELINE, partition_bytes=self._choice.partition_bytes))

    @property
    def error(self) -> float:
        """Relative standard error of a prediction, from those that were put to the test."""
        return exp(self._variance**0.5) - 1

    def predictions(self) -> tuple[Prediction, ...]:
        """What has been simulated for the present state, the best first."""
        return tuple(
            Prediction(candidate=candidate, iteration_s=self._expected_s(candidate), error=self.error)
            for candidate in sorted(self._simulated, key=self._expected_s)
        )

    def what_if(
        self,
        *,
        servers: int | None = None,
        gbps: float | None = None,
        bytes_by: float = 1.0,
        time_by: float = 1.0,
    ) -> Prediction:
        """The best plan and its speed with more servers, another bandwidth, fewer bytes (fp16: 0.5), other times."""
        if self._model is None:
            raise InputError("the twin has seen no statistics yet: nothing to ask it about")
        workload, cluster = self._model
        if servers is not None:
            if cluster.architecture is not Architecture.PS:
                raise InputError(f"what if: arch {cluster.architecture} has no servers")
            deployment = Ownership.MIXED if servers else Ownership.JOINT
            cluster = replace(cluster, servers=servers, deployment=deployment)
        if gbps is not None:
            cluster = replace(cluster, gbps=gbps)
        known = search(workload.scaled(bytes_by=bytes_by, time_by=time_by), cluster, self._space)
        best = next(iter(known))
        return Prediction(candidate=best, iteration_s=known[best] * self._scale, error=self.error)


NOTEWORTHY = 0.05
"""Gains below this are not worth anybody's trouble."""


def advice(twin: Twin, cluster: Cluster) -> tuple[str, ...]:
    """Lines such as `fp16 gradients: 84.1 ms ± 4% a step, 31 % faster`, the most helpful first."""
    present_s = twin.predictions()[0].iteration_s
    asked = {
        "half the bytes (fp16 gradients)": (twin.what_if(bytes_by=0.5), 1.0),
        "twice the batch": (twin.what_if(time_by=2.0), 2.0),
    }
    if cluster.architecture is Architecture.PS and cluster.servers < cluster.workers:
        servers = min(2 * cluster.servers or max(cluster.workers // 2, 1), cluster.workers)
        asked[f"{servers} servers instead of {cluster.servers}"] = (twin.what_if(servers=servers), 1.0)
    # Work done per second: a batch of twice the size does twice the work in its step.
    gains = {
        what: (present_s * work / prediction.iteration_s - 1, prediction) for what, (prediction, work) in asked.items()
    }
    return tuple(
        f"{what}: {prediction} a step, {gain:.0%} more samples a second"
        for what, (gain, prediction) in sorted(gains.items(), key=lambda entry: -entry[1][0])
        if gain > NOTEWORTHY
    )
