"""The probe: what the monitor hears of a schedule's steps. Made only where somebody listens.

Of a step it keeps its end and where its waits begin and end, by the clock of what computes; once a second also what is
under way when backward has ended.
"""

from collections import deque
from collections.abc import Callable, Sequence

from legato.live.monitor import Monitor
from legato.live.recorder import Queue
from legato.torch.tuning.clock import Clock, Stamp
from legato.torch.tuning.live import Tuning


class Probe:
    """One rank's; it hands on to what tunes, if anything does."""

    def __init__(
        self,
        monitor: Monitor,
        clock: Clock,
        *,
        ordered: Callable[[Sequence[int]], None],
        queue: Callable[[], Queue],
        then: Tuning | None = None,
    ) -> None:
        """`ordered` is told in which order parameters are used, `queue` tells what is under way."""
        self._recorder = monitor.recorder
        self._clock = clock
        self._ordered = ordered
        self._queue = queue
        self._then = then
        # Called for every layer of every step, so nothing is put in between.
        self.enter: Callable[[int], None] = _nothing if then is None else then.enter
        self.gradient: Callable[[int], None] = _nothing if then is None else then.gradient
        self._has_begun = False
        self._number = 0
        self._ended_ns = 0
        self._marks: list[Stamp] = []
        """Of this step: where waits begin and end, in turns."""
        self._unread: deque[tuple[int, list[Stamp]]] = deque()

    def begin(self, order: Sequence[int]) -> None:
        self._has_begun = True
        self._ended_ns = self._clock.begin()
        self._ordered(order)
        if self._then is not None:
            self._then.begin(order)

    def waiting(self) -> None:
        if self._has_begun:
            self._marks.append(self._clock.stamp())
        if self._then is not None:
            self._then.waiting()

    def waited(self) -> None:
        if self._has_begun:
            self._marks.append(self._clock.stamp())
        if self._then is not None:
            self._then.waited()

    def step(self) -> None:
        self._number += 1
        if self._has_begun:
            self._end_step()
        if self._then is not None:
            self._then.step()

    def close(self) -> None:
        if self._then is not None:
            self._then.close()

    def _end_step(self) -> None:
        self._marks.append(self._clock.stamp())
        self._unread.append((self._number, self._marks))
        self._marks = []
        if self._recorder.wants_queue:
            self._recorder.queue(self._queue())
        if len(self._unread) <= self._clock.lag_steps:
            return
        number, marks = self._unread.popleft()
        *waits_ns, ended_ns = self._clock.times_ns(marks)
        # A wait that somebody has interrupted has no end.
        waited_ns = sum(end - begin for begin, end in zip(waits_ns[::2], waits_ns[1::2], strict=False))
        self._recorder.step(number, (ended_ns - self._ended_ns) * 1e-9, waited_ns * 1e-9)
        self._ended_ns = ended_ns


def _nothing(index: int) -> None:
    """Nobody wants to know."""
    del index
