"""Pace: what this rank's steps are made of, for the conductor to find stragglers by (rendezvous/stragglers.py).

    step()      first layer                                           step()
    ┆── input ───┆── compute ──┆ wait ┆── compute ──┆ wait ┆── compute ──┆

Of each window of steps the shortest times count: what makes one step slow is not what makes a rank slow.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from legato.torch.tuning.clock import Clock, Stamp
from legato.transports.native.session import Session
from legato.transports.rendezvous import messages as m

WINDOW_STEPS = 3
"""The straggler of two windows is named: within ten steps, wherever between two windows it becomes one."""
LEAST_STEP_S = 0.005
"""Times the ranks. Reports of shorter steps would keep the conductor busy, which is beside rank 0."""
LEAST_FLOW_BYTES = 256 << 10
"""In a window: of less, latency says more than the link."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Moments of a step, until their times are known."""

    number: int
    entered: Stamp | None
    waits: list[Stamp]
    """Where they begin and end, in turns."""
    end: Stamp


@dataclass(frozen=True, slots=True)
class _Times:
    """Of one step, in seconds."""

    step_s: float
    input_s: float
    compute_s: float
    waited_s: float


class Pace:
    """One rank's part. A step costs it two looks at the clock, and two for each wait."""

    def __init__(self, session: Callable[[], Session], clock: Clock) -> None:
        """The clock is of what computes; each epoch of an elastic job has another session."""
        self._session = session
        self._clock = clock
        self._ended_ns: int | None = None
        self._entered: Stamp | None = None
        self._waits: list[Stamp] = []
        self._untimed: deque[_Step] = deque()
        self._window: list[_Times] = []
        self._flows: dict[int, tuple[int, int]] = {}

    # ---- marks ----

    def enter(self) -> None:
        """The forward pass is about to use a parameter."""
        if self._entered is None and self._ended_ns is not None:
            self._entered = self._clock.stamp()

    def mark_wait(self) -> None:
        """A wait for an average begins, or is over."""
        if self._ended_ns is not None:
            self._waits.append(self._clock.stamp())

    def step(self, number: int) -> None:
        """The user has called step(), for the n-th time."""
        if self._ended_ns is None:  # the first step is slow for reasons of its own
            self._ended_ns = self._clock.begin()
            return
        self._untimed.append(_Step(number, self._entered, self._waits, self._clock.stamp()))
        self._entered, self._waits = None, []
        if len(self._untimed) > self._clock.lag_steps:
            self._take(self._untimed.popleft())

    # ---- between two steps ----

    def _take(self, step: _Step) -> None:
        """A step whose times are known."""
        assert self._ended_ns is not None
        entered = [] if step.entered is None else [step.entered]
        *times, end_ns = self._clock.times_ns([*entered, *step.waits, step.end])
        began_ns, self._ended_ns = self._ended_ns, end_ns
        entered_ns = times.pop(0) if entered else began_ns
        waits = list(zip(times[::2], times[1::2], strict=False))
        before_ns = sum(end - begin for begin, end in waits if end <= entered_ns)
        waited_ns = sum(end - begin for begin, end in waits)
        input_ns = entered_ns - began_ns - before_ns
        self._window.append(
            _Times(
                step_s=(end_ns - began_ns) * 1e-9,
                input_s=input_ns * 1e-9,
                compute_s=(end_ns - began_ns - input_ns - waited_ns) * 1e-9,
                waited_s=waited_ns * 1e-9,
            )
        )
        if step.number % WINDOW_STEPS == 0:
            if len(self._window) == WINDOW_STEPS:
                self._report(step.number)
            self._window = []

    def _report(self, number: int) -> None:
        session = self._session()
        rates = self._rates(session)
        step_s = median(each.step_s for each in self._window)
        if step_s < LEAST_STEP_S * session.player.deployment.num_workers:
            return
        slowest = min(rates, key=lambda peer: rates[peer]) if rates else None
        session.member.tell(
            m.Pace(
                step=number,
                step_s=step_s,
                input_s=min(each.input_s for each in self._window),
                compute_s=min(each.compute_s for each in self._window),
                waited_s=median(each.waited_s for each in self._window),
                link_bytes_per_s=max(rates.values(), default=0.0),
                slowest_peer=slowest,
                slowest_bytes_per_s=0.0 if slowest is None else rates[slowest],
            )
        )

    def _rates(self, session: Session) -> dict[int, float]:
        """Bytes per second to each peer in this window, while some were on their way."""
        now: dict[int, tuple[int, int]] = {}
        for peer, num_bytes, busy_us in session.engine.flows():
            known_bytes, known_us = now.get(peer, (0, 0))
            now[peer] = known_bytes + num_bytes, known_us + busy_us
        before, self._flows = self._flows, now
        rates = {}
        for peer, (num_bytes, busy_us) in now.items():
            sent_bytes, sent_us = num_bytes - before.get(peer, (0, 0))[0], busy_us - before.get(peer, (0, 0))[1]
            if sent_bytes >= LEAST_FLOW_BYTES and sent_us > 0:
                rates[peer] = sent_bytes * 1e6 / sent_us
        return rates
