"""The recorder: what one rank sees of its own steps, brought together about once a second.

A step costs its caller one tuple in a list. Everything else is done by the monitor's thread, whose work is limited by
its interval and not by the number of steps.
"""

import time
from collections.abc import Callable
from statistics import fmean, median
from typing import NamedTuple

from legato.live.facts import Figures, Traffic

Queue = tuple[tuple[int, int], ...]


class _Step(NamedTuple):
    number: int
    seconds: float
    exposed_s: float


class Recorder:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._steps: list[_Step] = []
        self._queue: Queue = ()
        self.wants_queue = False
        """Whether the next step should say what is queued: once for each figures, since it looks at every gradient."""
        self.traffic: Callable[[], Traffic] = Traffic

    def step(self, number: int, seconds: float, exposed_s: float) -> None:
        """A step is over: its number, how long it took, and how much of that was spent waiting for sums."""
        self._steps.append(_Step(number, seconds, exposed_s))

    def queue(self, queue: Queue) -> None:
        """(priority, bytes) of what is under way at the end of backward."""
        self._queue, self.wants_queue = queue, False

    def figures(self) -> Figures | None:
        """Of the steps since the last call; None where there were none."""
        steps, self._steps = self._steps, []
        queue, self._queue, self.wants_queue = self._queue, (), True
        if not steps:
            return None
        return Figures(
            rank=self._rank,
            step=steps[-1].number,
            time_s=round(time.monotonic(), 6),
            num_steps=len(steps),
            seconds=round(sum(step.seconds for step in steps), 6),
            step_s=round(median(step.seconds for step in steps), 6),
            exposed_s=round(fmean(step.exposed_s for step in steps), 6),
            traffic=self.traffic(),
            queue=queue,
        )


class Rates:
    """Counters of one rank as bytes a second, between its last two figures."""

    def __init__(self) -> None:
        self._before: Figures | None = None
        self.per_s = (0.0, 0.0, 0.0)
        """Sent, received, shared."""
        self.links_per_s: dict[int, tuple[float, float]] = {}
        """Sent and received, by peer."""

    def tell(self, figures: Figures) -> None:
        before, self._before = self._before, figures
        if before is None or figures.time_s <= before.time_s:
            return
        now, then, seconds = figures.traffic, before.traffic, figures.time_s - before.time_s
        sent, received, shared = (
            max(getattr(now, name) - getattr(then, name), 0) / seconds
            for name in ("sent_bytes", "received_bytes", "shared_bytes")
        )
        self.per_s = (sent, received, shared)
        known = {link.peer: link for link in then.links}
        self.links_per_s = {
            link.peer: (
                (link.sent_bytes - known[link.peer].sent_bytes) / seconds,
                (link.received_bytes - known[link.peer].received_bytes) / seconds,
            )
            for link in now.links
            if link.peer in known
        }
