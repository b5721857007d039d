"""Handles: operations that have been asked for and may still be under way."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Generic, Protocol, TypeVar

from legato import _native
from legato.errors import (
    ClosedError,
    CorruptionError,
    DeadlineError,
    JobError,
    MismatchError,
    PeerLostError,
    ProtocolError,
)
from legato.transports.declaration import Declaration
from legato.transports.rendezvous.member import SLICE_S, Patience, given_up, in_time

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_GRACE_S = 5.0
"""What an operation of several phases may take beyond the timeout: the phase that is late says who is missing."""

_ERRORS: dict[str, type[JobError]] = {
    "peer_lost": PeerLostError,
    "protocol": ProtocolError,
    "mismatch": MismatchError,
    "closed": ClosedError,
    "internal": JobError,
    "corrupted": CorruptionError,
}
_ADVICE = {
    "peer_lost": "see its log for why, and restart the job from the last checkpoint",
    "protocol": "check that every member runs the same version of legato",
    "mismatch": "give the same operation on every rank",
    "closed": "nothing can be sent after close",
    "corrupted": "check the network between their hosts, and restart the job from the last checkpoint",
    "internal": "give that member more memory if it has run out, and restart the job from the last checkpoint",
}


def translate(
    failure: _native.Failure, name_of: Callable[[int], str | None], num_workers: int, member: int
) -> JobError:
    """The engine's failure as a typed error that names rank, tensor and step, for the `member` that raises it."""
    if failure.kind == "peer_lost" and failure.rank == member:
        return given_up(failure.message, member)
    tensor = name_of(failure.tensor) if failure.tensor >= 0 else None
    step = failure.step if failure.step >= 0 else None
    rank = failure.rank if failure.rank >= 0 else None
    # The engine's words name the tensor and the step, but a member by its number alone.
    who = "" if rank is None else f" ({'rank' if rank < num_workers else 'server'} {rank})"
    text = f"{failure.message}{who}; {_ADVICE[failure.kind]}"
    return _ERRORS[failure.kind](text, rank=rank, tensor=tensor, step=step)


class Handle(Protocol[T_co]):
    """One operation."""

    def poll(self) -> bool:
        """Whether the operation is over, well or badly."""

    def wait(self, timeout_s: float | None = None) -> T_co:
        """Wait for the result; DeadlineError after `timeout_s`, or the job's timeout, names who is missing."""


class _Channel(Protocol):
    """Whose operation it is: a name, and what is known of the job around it."""

    tensor: Declaration
    timeout_s: float

    @property
    def check_open(self) -> Callable[[], None]: ...
    def absence(self, step: int) -> JobError | None: ...
    def patience(self, step: int) -> Patience: ...
    def blame(self, error: JobError) -> JobError: ...
    def overdue(self, step: int, limit_s: float, missing: Sequence[int]) -> JobError: ...
    def explain(self, failure: _native.Failure, step: int) -> JobError: ...
    def lateness(self, step: int, limit_s: float, missing: Sequence[int]) -> DeadlineError: ...
    def forget(self, step: int) -> None: ...


class TaskHandle(Generic[T]):
    """An operation that is one task of the engine.

    The task is a future while the engine does not have it: an operation may wait for all ranks to declare its tensor.
    Its memory stays alive by the channel (`Channel.forget`), also where nobody holds the handle any more.
    """

    __slots__ = ("_channel", "_result", "_task", "step")

    def __init__(
        self, channel: _Channel, step: int, task: "_native.Handle | Future[_native.Handle]", result: T
    ) -> None:
        self.step = step
        self._channel = channel
        self._task = task
        self._result = result

    @property
    def tensor(self) -> str:
        """Its name."""
        return self._channel.tensor.name

    def poll(self) -> bool:
        task = self._task
        if isinstance(task, Future):
            return task.done() and (task.exception() is not None or task.result().poll())
        return task.poll()

    def wait(self, timeout_s: float | None = None) -> T:
        task = self._started_task(timeout_s)
        if not task.poll():
            self._wait_in_slices(task.wait, timeout_s, lambda: task.missing)
        failure = task.failure
        if failure is not None:
            raise self._channel.explain(failure, self.step)
        self._channel.forget(self.step)
        return self._result

    def wait_measured(self) -> tuple[float, float]:
        """Of what is measured: wait until servers have told its measure, which they do before the result arrives."""
        task = self._started_task(None)
        self._wait_in_slices(task.wait_measured, None, lambda: task.missing)
        measure, failure = task.measure, task.failure
        if measure is None:
            assert failure is not None
            raise self._channel.explain(failure, self.step)
        return measure

    def wait_first(self, num_bytes: int) -> int:
        """Wait until so many of the result's first bytes are there, while others may still be missing; how many are."""
        task = self._started_task(None)
        self._wait_in_slices(partial(task.wait_first, num_bytes), None, lambda: task.missing)
        failure = task.failure
        if failure is not None:
            raise self._channel.explain(failure, self.step)
        return task.first_bytes

    @property
    def empty(self) -> bool:
        """After `wait`: whether nobody had anything to add, so that there is no result."""
        return self._started_task(None).empty

    @property
    def without(self) -> list[int]:
        """After `wait`, of what has backups: the ranks that were too late for the result, or for a part of it."""
        return self._started_task(None).without

    def started(self) -> _native.Handle:
        """The engine's task, as soon as it has it."""
        return self._started_task(None)

    def _started_task(self, timeout_s: float | None) -> _native.Handle:
        task = self._task
        if not isinstance(task, Future):
            return task
        if not task.done():
            self._channel.check_open()
            self._wait_in_slices(lambda slice_s: bool(wait([task], slice_s).done), timeout_s, list)
        return task.result()

    def _wait_in_slices(
        self, wait: Callable[[float], bool], timeout_s: float | None, missing: Callable[[], list[int]]
    ) -> None:
        """The engine wakes us at once, but Ctrl-C, and that a rank has left, only between two slices."""
        limit_s = self._channel.timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        if wait(min(limit_s, SLICE_S)):
            return
        patience = self._channel.patience(self.step)
        try:
            while True:
                absence = self._channel.absence(self.step)
                if absence is not None:
                    raise self._channel.blame(absence)
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 and limit_s >= self._channel.timeout_s:
                    raise self._channel.overdue(self.step, limit_s, missing())
                if left_s <= 0:
                    raise self._channel.lateness(self.step, limit_s, missing())
                patience.look(missing())
                if wait(min(left_s, SLICE_S)):
                    return
        finally:
            patience.end()


class ThreadHandle(Generic[T]):
    """An operation in several phases, each of which needs the one before: a thread walks through them."""

    def __init__(self, name: str, work: Callable[[], T], timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._outcome: Future[T] = Future()
        threading.Thread(target=self._run, args=(work,), name=f"legato-{name}", daemon=True).start()

    def poll(self) -> bool:
        return self._outcome.done()

    def wait(self, timeout_s: float | None = None) -> T:
        limit_s = self._timeout_s + _GRACE_S if timeout_s is None else timeout_s
        words = f"{self._name}: not done within {limit_s:g} s"
        return in_time(self._outcome, limit_s, lambda: DeadlineError(words, tensor=self._name))

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            self._outcome.set_exception(error)
