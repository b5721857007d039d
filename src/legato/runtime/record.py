"""The record: what a runtime has seen of time, for whoever makes the next plan."""

from legato.core import Command, Event, Finished, Ready, Stage, Start


class Record:
    """An observer that keeps when the gradients of the last whole step appeared, and how fast bytes moved."""

    def __init__(self, num_tensors: int) -> None:
        self._num_tensors = num_tensors
        self._ready: dict[int, dict[int, float]] = {}
        self._last: dict[int, float] | None = None
        self._in_flight = 0
        self._busy_since_s = 0.0
        self.busy_s = 0.0
        """Time in which at least one operation was in flight."""
        self.num_bytes = 0
        """Bytes that were moved in it, counted for each half of a sum: scattered and gathered."""

    def __call__(self, now_s: float, what: Event | Command) -> None:
        match what:
            case Ready(task):
                step = self._ready.setdefault(task.step, {})
                step[task.tensor] = now_s
                if len(step) == self._num_tensors:
                    self._last = self._ready.pop(task.step)
            case Start():
                if self._in_flight == 0:
                    self._busy_since_s = now_s
                self._in_flight += 1
            case Finished(part):
                self._in_flight -= 1
                self.num_bytes += part.length * (2 if part.stage is Stage.SYNC else 1)
                if self._in_flight == 0:
                    self.busy_s += now_s - self._busy_since_s

    def ready_s(self) -> tuple[float, ...] | None:
        """When each tensor was ready in the last whole step, after the first of them; None before there was one."""
        if self._last is None:
            return None
        begin_s = min(self._last.values())
        return tuple(self._last[tensor] - begin_s for tensor in range(self._num_tensors))

    def forget(self) -> None:
        """Begin anew: what comes is another plan, or no longer the first steps."""
        self._ready.clear()
        self._last = None
        self.busy_s, self.num_bytes = 0.0, 0
