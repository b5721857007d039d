"""The runtime: feeds a scheduler with events and the time, and does what it says.

    framework's threads                this thread
       │ ready(task)                      │ transport.events()
       ▼                                  ▼
    ┌─ lock ──────────────────────────────────┐
    │ scheduler.handle(now, event) → commands │ ──► transport.start(part), in the order of the commands
    └────────────────────┬────────────────────┘
                         ▼ complete
    wait(task)  ◄──── whoever waits

A gradient that becomes ready starts its operation on the thread that brings it: handing it to another thread would
cost a turn of the interpreter's lock, up to 5 ms while the framework runs Python. Operations are started under the
lock, so that they leave in the order in which they were chosen.
"""

import threading
import time
from collections.abc import Callable, Sequence

from legato.core import Command, Complete, Event, Finished, Part, Plan, Ready, Replan, Scheduler, Start, Task, Tensor
from legato.errors import ClosedError, DeadlineError
from legato.transports.base import Transport

Clock = Callable[[], float]
Observer = Callable[[float, Event | Command], None]
"""Is told of every event and command with its time; it is called under the lock and must not take long."""


class Runtime:
    """One scheduler, one transport and the thread between them. Closing it closes the transport."""

    def __init__(
        self,
        transport: Transport,
        tensors: Sequence[Tensor],
        plan: Plan,
        *,
        timeout_s: float = 60.0,
        clock: Clock = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        self._transport = transport
        self._tensors = tuple(tensors)
        self._timeout_s = timeout_s
        self._clock = clock
        self._observer = observer
        self._changed = threading.Condition()
        self._scheduler = Scheduler(tensors, plan)
        # Tasks of one tensor complete in order, so how far each has come says it all.
        self._next_step = [0] * len(self._tensors)
        self._in_flight: dict[Part, float] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._listen, name="legato-runtime", daemon=True)
        self._thread.start()

    def ready(self, *tasks: Task) -> None:
        """The gradients are there, and the transport has been offered each bucket that they complete."""
        with self._changed:
            self._check()
            for task in tasks:
                self._guarded(Ready(task))

    def replan(self, step: int, plan: Plan) -> None:
        """Follow another plan from a step on; the transport has agreed to it."""
        with self._changed:
            self._check()
            self._guarded(Replan(step, plan))

    def is_complete(self, task: Task) -> bool:
        """Whether `wait` would return at once."""
        with self._changed:
            self._check()
            return self._next_step[task.tensor] > task.step

    def wait(self, task: Task, timeout_s: float | None = None) -> None:
        """Until the sum of the task has arrived."""
        name = self._tensors[task.tensor].name
        what = f"tensor {name!r} in step {task.step}"
        self.wait_until(lambda: self._next_step[task.tensor] > task.step, what, timeout_s)

    def drain(self, timeout_s: float | None = None) -> None:
        """Until every task that became ready is complete."""
        self.wait_until(lambda: self._scheduler.idle, "the tasks under way", timeout_s)

    def wake(self) -> None:
        """Have whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop; whoever waits hears of it. Can be called twice."""
        with self._changed:
            if self._error is None:
                self._error = ClosedError("the runtime is closed; make a new one to go on", rank=self._transport.rank)
            self._changed.notify_all()
            stuck = bool(self._in_flight)
        self._transport.close()
        # With operations in flight, the thread is inside the transport until they end or fail: it is not waited for.
        if not stuck:
            self._thread.join(self._timeout_s)

    def wait_until(self, arrived: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Until it is so; an observer that makes it so calls `wake`. The error names `what` has not come."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or arrived(), timeout_s)
            if arrived():
                return
            self._check()
            raise DeadlineError(
                f"rank {self._transport.rank} waited {timeout_s:g} s for {what}; {self._situation()}",
                rank=self._transport.rank,
            )

    def _situation(self) -> str:
        """What keeps us waiting: another rank, or a gradient of our own."""
        if not self._in_flight:
            return f"nothing is in flight, so gradients of this rank are missing: {self._scheduler!r}"
        part = min(self._in_flight, key=self._in_flight.__getitem__)
        bucket = self._scheduler.plan_at(part.step).buckets[part.bucket]
        names = ", ".join(repr(self._tensors[index].name) for index in bucket[:3])
        return (
            f"{part.stage.name} of {names}{', …' * (len(bucket) > 3)} in step {part.step} has been in flight for "
            f"{self._clock() - self._in_flight[part]:.1f} s: a rank has not started it, or cannot be reached"
        )

    # ---- with the lock held ----

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _guarded(self, event: Event) -> None:
        """Handle an event; what goes wrong is raised here and kept for everybody else."""
        try:
            self._handle(event)
        except BaseException as error:
            self._error = error
            self._changed.notify_all()
            raise

    def _handle(self, event: Event) -> None:
        now = self._clock()
        self._observe(now, event)
        completed = False
        for command in self._scheduler.handle(now, event):
            self._observe(now, command)
            if isinstance(command, Start):
                self._in_flight[command.part] = now
                self._transport.start(command.part)
            elif isinstance(command, Complete):
                self._next_step[command.task.tensor] = command.task.step + 1
                completed = True
        if completed:
            self._changed.notify_all()

    def _observe(self, now: float, what: Event | Command) -> None:
        if self._observer is not None:
            self._observer(now, what)

    # ---- the thread ----

    def _listen(self) -> None:
        try:
            while True:
                events = self._transport.events(self._timeout_s)
                with self._changed:
                    if self._error is not None:
                        return
                    for event in events:
                        if isinstance(event, Finished):
                            del self._in_flight[event.part]
                        self._handle(event)
        except BaseException as error:  # noqa: BLE001 - carried to whoever waits
            with self._changed:
                if self._error is None:
                    self._error = error
                self._changed.notify_all()
