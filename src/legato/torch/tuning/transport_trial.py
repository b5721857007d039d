"""Which transport: the one that would be taken anyway against the other, on the first steps of training.

    step        1 2 3 4 5    6 7 8      9 … 14     15 … 20    …             then
    transport   standing     standing   rival      standing   …             what was decided
                look         blocks of three steps, the guard's             plans are tuned, where they can be

Where little of the first steps is spent waiting there is nothing to gain, and no trial. It is what computes that waits,
by its own clock: the thread that trains may be far ahead of an accelerator and wait for nothing. Ranks compare their
times when a block is over, in the step that does not count: all then know the same numbers, and decide the same by
themselves.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from legato.live.monitor import Monitor
from legato.torch.sync.switching import Switching
from legato.torch.tuning.clock import Clock, Stamp
from legato.torch.tuning.live import Tuning
from legato.transports.native.group import NativeGroup
from legato.tuning.candidate import Candidate
from legato.tuning.live.controller import WORTHWHILE
from legato.tuning.live.guard import Guard, GuardConfig

_log = logging.getLogger(__name__)

LOOK_STEPS = 5
"""Steps whose median says how much is spent waiting; the first ones are slow for other reasons."""
CONFIG = GuardConfig(min_blocks=8, sigmas=3.0, worthwhile=WORTHWHILE)
"""A transport stays for as long as training does, so it takes longer than a plan and more certainty; but two that are
as fast as each other need no longer trial."""


class TransportTrial:
    """One rank's part in it; then it hands over to what tunes plans."""

    def __init__(
        self,
        group: NativeGroup,
        name: str,
        synchronizer: Switching,
        clock: Clock,
        *,
        standing: Candidate,
        rival: Candidate,
        then: Tuning | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        """`group` is where ranks compare their times, under this name: never that of a backend that matches operations
        by their order, in which gradients are under way. The clock is of what computes. `then` goes on where the
        standing transport stays."""
        self._group = group
        self._name = name
        self._synchronizer = synchronizer
        self._clock = clock
        self._rival = rival
        self._then = then
        self._facts = None if monitor is None else monitor.tuning
        self._guard = Guard(CONFIG, baseline=standing)
        self._order: Sequence[int] = ()
        self._began_ns: int | None = None
        self._steps_s: list[float] = []
        self._ended_ns = 0
        """The last step whose marks have been read, by the clock."""
        self._marks: list[Stamp] = []
        """Of this step: where waits begin and end, in turns."""
        self._unread: deque[list[Stamp]] = deque()
        """Of steps, the oldest first; their ends are their last marks."""
        self._waits: list[float] = []
        """The share of each step that was spent waiting."""
        self._is_over = False
        self._is_alone = False

    def begin(self, order: Sequence[int]) -> None:
        self._order = order
        self._began_ns = time.monotonic_ns()
        self._ended_ns = self._clock.begin()

    def close(self) -> None:
        if self._then is not None:
            self._then.close()

    def enter(self, index: int) -> None:
        if self._then is not None:
            self._then.enter(index)

    def gradient(self, index: int) -> None:
        if self._then is not None:
            self._then.gradient(index)

    def waiting(self) -> None:
        self._mark()
        if self._then is not None:
            self._then.waiting()

    def waited(self) -> None:
        self._mark()
        if self._then is not None:
            self._then.waited()

    def step(self) -> None:
        if self._is_over:
            self._is_alone = self._is_alone or self._synchronizer.close_others()
            if self._then is not None:
                self._then.step()
            return
        if self._began_ns is None:
            return
        if not self._guard.in_trial:
            self._look()
        else:
            self._steps_s.append((time.monotonic_ns() - self._began_ns) * 1e-9)
            if len(self._steps_s) == CONFIG.block_steps:
                self._end_block()
        # What comparing took is no part of a step.
        self._began_ns = time.monotonic_ns()

    def _mark(self) -> None:
        if self._began_ns is not None and not self._is_over and not self._guard.in_trial:
            self._marks.append(self._clock.stamp())

    def _look(self) -> None:
        """At how a step was spent, and after some: is there anything to gain?"""
        self._mark()
        self._unread.append(self._marks)
        self._marks = []
        if len(self._unread) <= self._clock.lag_steps:
            return
        *waits_ns, ended_ns = self._clock.times_ns(self._unread.popleft())
        waited_ns = sum(end - begin for begin, end in zip(waits_ns[::2], waits_ns[1::2], strict=True))
        self._waits.append(waited_ns / (ended_ns - self._ended_ns))
        self._ended_ns = ended_ns
        if len(self._waits) < LOOK_STEPS:
            return
        most = float(self._compare([median(self._waits)]).max())
        if most < WORTHWHILE:
            standing = self._guard.ask()
            self._end(f"{most:.1%} of a step is spent waiting for sums: {standing} stays, no transport can gain more")
        else:
            self._guard.propose(self._rival)

    def _end_block(self) -> None:
        """A step takes as long as on its slowest rank."""
        *_, decision = [self._guard.tell(float(step_s)) for step_s in self._compare(self._steps_s).max(axis=0)]
        transport = self._guard.ask().transport
        assert transport is not None
        self._synchronizer.choose(transport)
        if decision is not None:
            self._end(str(decision))

    def _compare(self, values: Sequence[float]) -> np.ndarray:
        """The values of all ranks, one row each."""
        self._steps_s = []
        return self._group.allgather(self._name, np.array(values)).reshape(self._group.size, -1)

    def _end(self, reason: str) -> None:
        self._is_over = True
        if self._group.rank == 0:
            _log.info("%s", reason)
        if self._facts is not None:
            self._facts.said(reason)
        if self._guard.ask() == self._rival:
            self._then = None
        if self._then is not None:
            self._then.begin(self._order)
