"""The record: what a runtime has seen of time, for whoever makes the next plan."""

from statistics import median

from legato.core import Command, Event, Finished, Ready, Stage, Start


class Record:
    """An observer that keeps when the gradients of each whole step appeared, and how fast bytes moved.

    in flight    ├─── a ───┤                        a: waited for the other ranks, too: says nothing of the links
                      ├──── b ───────┤              b: moved between a's end and its own, as links do under load
    counted                 ├── b ───┤
    """

    def __init__(self, num_tensors: int) -> None:
        self._num_tensors = num_tensors
        self._steps: dict[int, dict[int, float]] = {}
        self._whole: list[dict[int, float]] = []
        self._in_flight = 0
        self._last_end_s: float | None = None
        # Time in which operations followed one another without a pause, and what moved in it.
        self._busy_s, self._num_bytes = 0.0, 0

    def __call__(self, now_s: float, what: Event | Command) -> None:
        match what:
            case Ready(task):
                step = self._steps.setdefault(task.step, {})
                step[task.tensor] = now_s
                if len(step) == self._num_tensors:
                    self._whole.append(self._steps.pop(task.step))
            case Start():
                if self._in_flight == 0:
                    self._last_end_s = None
                self._in_flight += 1
            case Finished(part):
                self._in_flight -= 1
                if self._last_end_s is not None:
                    self._busy_s += now_s - self._last_end_s
                    self._num_bytes += part.length * (2 if part.stage is Stage.SYNC else 1)
                self._last_end_s = now_s

    def ready_s(self) -> tuple[float, ...] | None:
        """When each tensor was ready after the first one of its step, the median; None before there was a step."""
        if not self._whole:
            return None
        begins_s = [min(step.values()) for step in self._whole]
        return tuple(
            median(step[tensor] - begin_s for step, begin_s in zip(self._whole, begins_s, strict=True))
            for tensor in range(self._num_tensors)
        )

    @property
    def bytes_per_s(self) -> float | None:
        """How fast bytes moved, counted for each half of a sum: scattered and gathered. None before any did."""
        return self._num_bytes / self._busy_s if self._busy_s > 0 and self._num_bytes else None

    def forget(self) -> None:
        """Begin anew: what comes is another plan, or no longer the first steps."""
        self._steps.clear()
        self._whole.clear()
        self._busy_s, self._num_bytes = 0.0, 0
