"""Channels: what a group knows of one name, and the operation that is under way under it.

Every tensor of a model passes here in every step, on the thread that trains: what does not change from step to step is
looked up once.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from legato import _native
from legato.errors import DeadlineError, InputError, JobError, LegatoError
from legato.transports.buffer import Array, Buffer
from legato.transports.declaration import Declaration, Operation
from legato.transports.native.handle import Handle, TaskHandle
from legato.transports.native.session import Session
from legato.transports.rendezvous.member import Patience
from legato.transports.rendezvous.messages import Definition

T = TypeVar("T")

Segment = tuple[int, int]
"""(offset, length) in a tensor's bytes."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The largest magnitude on any rank: where it will be, and the task that brings it."""

    value: Array
    handle: TaskHandle[None]


class Channel:
    """One declared name. A step of it begins after the last one is over, so one operation is under way at most."""

    def __init__(self, session: Session, tensor: Declaration) -> None:
        self.tensor = tensor
        self.timeout_s = session.config.member.timeout_s
        self.check_open = session.check_open
        self._session = session
        self._engine = session.engine
        self._number: int | None = None
        """The engine's, once all ranks have agreed."""
        self._is_planned = tensor.operation is Operation.PUSH_PULL
        self._lock = threading.Lock()
        self.latest_step = -1
        """The last one that has begun; -1 before the first."""
        self._under_way: Handle[object] | None = None
        self._memory: object = None
        """What the operation under way reads and writes, alive until it has been waited for or the name is used again:
        the engine has addresses only, and whoever asked for the operation may be gone before its sum is back."""

    def launch(
        self,
        *,
        source: int,
        destination: int,
        num_bytes: int,
        memory: object,
        result: T,
        reduction: str = "sum",
        priority: int = 0,
        step: int | None = None,
        absent: bool = False,
        scale: Scale | None = None,
        source_segment: Segment | None = None,
        destination_segment: Segment | None = None,
    ) -> TaskHandle[T]:
        """Give a task to the engine as soon as the tensor is agreed on.

        `num_bytes` is what the memory at each address has; where it holds a segment of the tensor only, the segment
        says how much. InputError where that is not what the tensor needs. `memory` owns it. With a `scale`, nothing is
        sent before it has been agreed on.
        """
        if self._session.closed:
            self.check_open()  # before the lock, which in a child of the process may never be free again
        with self._lock:
            chosen = self._next_step(step)
            spans = source, destination, num_bytes, source_segment, destination_segment
            task = self._start(_Submission(chosen, priority, *spans, reduction, absent, scale))
            handle = TaskHandle(self, chosen, task, result)
            self.latest_step = chosen
            self._under_way = handle
            self._memory = memory
            return handle

    def absence(self, step: int) -> JobError | None:
        """Why a step can never be done, when ranks that it needs have left."""
        return self._session.member.absence(self.tensor, step)

    def explain(self, failure: _native.Failure, step: int) -> JobError:
        """Why a step failed. Who left before it is to blame, also where others have gone for that reason since."""
        error = self._session.explain(failure)
        return self.blame(self.absence(step) or error)

    def blame(self, error: JobError) -> JobError:
        """An error that ends a wait here, and that the others hear should this rank go because of it."""
        return self._session.blame(error)

    def patience(self, step: int) -> Patience:
        """For a wait that begins now."""
        return self._session.member.patience(self.tensor.name, step)

    def overdue(self, step: int, limit_s: float, missing: Sequence[int]) -> JobError:
        """A step is not done within the job's own timeout: the end of the job, for a reason that is everybody's."""
        return self._session.end(self.lateness(step, limit_s, missing))

    def lateness(self, step: int, limit_s: float, missing: Sequence[int]) -> DeadlineError:
        """A step is not done in time; the `missing` ranks have not sent theirs."""
        ranks = ", ".join(map(str, missing))
        who = f"ranks {ranks} have not sent it" if missing else "its tensor is not agreed, or a server does not answer"
        return DeadlineError(
            f"tensor {self.tensor.name!r}, step {step}: not done within {limit_s:g} s: {who}; "
            "see their logs, or give a longer timeout",
            rank=missing[0] if missing else None,
            tensor=self.tensor.name,
            step=step,
        )

    def forget(self, step: int) -> None:
        """An operation has been waited for: its memory is its owner's alone again."""
        with self._lock:
            if self.latest_step == step:
                self._under_way = self._memory = None

    def _next_step(self, step: int | None) -> int:
        latest = self.latest_step
        if self._under_way is not None and not self._under_way.poll():
            raise InputError(
                f"tensor {self.tensor.name!r}: step {latest} is still under way; wait for its handle first"
            )
        if step is None:
            return latest + 1
        if step <= latest:
            raise InputError(f"tensor {self.tensor.name!r}: step is {step}, but step {latest} has been there already")
        return step

    def _start(self, submission: "_Submission") -> "_native.Handle | Future[_native.Handle]":
        """Submit a task now if its tensor is agreed on and no plan round holds its step back; otherwise when it is."""
        member, player = self._session.member, self._session.player
        if self._number is None:
            definition = member.definition(self.tensor)
            self._number = None if definition is None else definition.id
        if self._number is not None and (not self._is_planned or player.gate.admit(submission.step)):
            return self._submit(self._number, submission)
        later: Future[_native.Handle] = Future()

        def begin(definition: Definition) -> None:
            try:
                later.set_result(self._submit(definition.id, submission))
            except LegatoError as error:
                later.set_exception(error)

        def go_on(known: "Future[Definition]") -> None:
            error = known.exception()
            if error is not None:
                later.set_exception(error)
            elif self._is_planned:
                player.gate.begin(submission.step, lambda: begin(known.result()))
            else:
                begin(known.result())

        member.declare([self.tensor])[0].add_done_callback(go_on)
        return later

    def _submit(self, number: int, submission: "_Submission") -> _native.Handle:
        try:
            return self._engine.submit(
                number,
                submission.step,
                submission.priority,
                submission.source,
                submission.destination,
                submission.num_bytes,
                submission.reduction,
                submission.absent,
                None if submission.scale is None else submission.scale.handle.started(),
                0 if submission.scale is None else submission.scale.value.ctypes.data,
                submission.source_segment,
                submission.destination_segment,
            )
        except (ValueError, RuntimeError) as error:
            step = submission.step
            raise self.absence(step) or self._session.refusal(error, self.tensor.name, step) from None


class Channels(Protocol):
    """A group, as operations of several phases see it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def session(self) -> Session: ...
    def channel(self, tensor: Declaration) -> Channel: ...
    def declare(self, tensors: Sequence[Declaration]) -> None: ...
    def push_pull(self, name: str, value: Array, *, timeout_s: float | None = None) -> Array: ...


class _Submission(NamedTuple):
    """What the engine is told of a task, but for the number of its tensor."""

    step: int
    priority: int
    source: int
    destination: int
    num_bytes: int
    source_segment: Segment | None
    destination_segment: Segment | None
    reduction: str
    absent: bool
    scale: Scale | None


def agree_on_scale(
    group: Channels, tensor: Declaration, source: Buffer, *, step: int | None, absent: bool
) -> Scale | None:
    """Begin to agree on the scale of a step, where the tensor needs one; it goes before all else."""
    meaning = tensor.scale
    if meaning is None:
        return None
    if group.session.member.definition(tensor) is None:
        group.declare([meaning, tensor])  # so that neither task waits for an agreement that the other has
    value = np.array([0.0 if absent else _native.largest(source.array())], np.float32)
    address = value.ctypes.data
    handle = group.channel(meaning).launch(
        source=address,
        destination=address,
        num_bytes=value.nbytes,
        memory=value,
        result=None,
        reduction="max",
        step=step,
        absent=absent,
    )
    return Scale(value, handle)
