"""The native group: collective operations over legato's own engine, blocking or with a handle."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from legato import _native
from legato.core.plan import Plan
from legato.errors import ClosedError, DeadlineError, InputError, LegatoError
from legato.transports import rows as sparse_rows
from legato.transports import uneven
from legato.transports.buffer import Array, Buffer, Bufferable, numpy_dtype
from legato.transports.declaration import Declaration, Operation
from legato.transports.handle import Handle, Kept, TaskHandle, ThreadHandle
from legato.transports.messages import Definition
from legato.transports.rows import Rows
from legato.transports.scale import Scale, agree_on_scale
from legato.transports.session import NativeConfig, Session

T = TypeVar("T")

_ADDRESS_MASK = (1 << 64) - 1
_PUSH_PULLS = (Operation.PUSH_PULL, Operation.ALL_REDUCE, Operation.ACCUMULATE)
_GRACE_S = 5.0
"""What a rank waits beyond the conductor's deadline, so that it hears the reason from the conductor."""


_Submit = Callable[[Definition], _native.Handle]


class NativeGroup:
    """A worker among others. Constructing it joins the job, closing it leaves.

    Every operation has a name. The first use declares it: all ranks must use it, with the same shape, dtype, operation
    and root, and hear at once when they do not. From then on no rank waits for another but through the data itself.
    Steps of a name count from 0 by themselves, or are given; a name's next step begins after the last one is over.
    """

    def __init__(self, config: NativeConfig) -> None:
        if config.member.rank is None:
            raise InputError("rank is None: a server has no group, it serves (legato.transports.server)")
        self.rank = config.member.rank
        self.size = config.member.deployment.num_workers
        self._timeout_s = config.member.timeout_s
        self._lock = threading.Lock()
        self._latest: dict[str, tuple[int, Handle[object] | None]] = {}
        self.session = Session(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(now=error is not None)

    def close(self, *, now: bool = False) -> None:
        """Leave the job, when everybody does or at the timeout; with `now`, at once. Can be called twice."""
        self.session.close(now=now)

    def declare(self, tensors: Sequence[Declaration], timeout_s: float | None = None) -> None:
        """Agree on tensors with all ranks, in one round trip for all of them: faster than at their first use."""
        self.check_open()
        for tensor, known in zip(tensors, self.session.member.declare(tensors), strict=True):
            _settled(known, tensor.name, timeout_s or self._timeout_s)

    def set_plan(self, plan: Plan, from_step: int, *, everyone: bool = False) -> None:
        """Follow the partition and credit of `plan` from a step on, on all members or on none.

        One rank calls it; or all ranks do, with `everyone`, and each hears when they differ. Every member checks that
        it would cut and place the parts alike, and that the step has not begun; PlanError otherwise.
        """
        self.check_open()
        self.session.member.propose(plan.to_json(), from_step, everyone=everyone)

    # ---- operations ----

    def push_pull_async(
        self,
        name: str,
        value: Bufferable,
        *,
        out: Bufferable | None = None,
        reduction: str = "sum",
        priority: int = 0,
        step: int | None = None,
        absent: bool = False,
        compression: str | None = None,
    ) -> TaskHandle[Bufferable]:
        """Reduce `value` over all ranks, into `out` or in place; the handle's result is that object.

        A rank that is `absent` adds nothing and gets the reduction of the others; an average still counts it. What has
        been declared as a running total (`Operation.ACCUMULATE`) brings the reduction of all steps there have been; of
        what has been declared with backups, the handle tells without whom it is.
        `compression` is how it travels (`legato.compression`), where the tensor has not been declared before.
        """
        source = Buffer.of(value, f"tensor {name!r}")
        target = value if out is None else out
        destination = _like(source if out is None else Buffer.of(out, f"tensor {name!r}"), source, name)
        meaning = self._push_pull_meaning(name, source, reduction, step, compression)
        scale = agree_on_scale(self, meaning, source, step=step, absent=absent)
        return self.launch(
            meaning,
            source=source.address,
            destination=destination.address,
            result=Kept((source, destination, scale), target),
            reduction=reduction,
            priority=priority,
            step=step,
            absent=absent,
            scale=scale,
        )

    def push_pull(
        self,
        name: str,
        value: Bufferable,
        *,
        out: Bufferable | None = None,
        reduction: str = "sum",
        priority: int = 0,
        step: int | None = None,
        compression: str | None = None,
        timeout_s: float | None = None,
    ) -> Bufferable:
        handle = self.push_pull_async(
            name, value, out=out, reduction=reduction, priority=priority, step=step, compression=compression
        )
        return handle.wait(timeout_s)

    def broadcast_async(
        self, name: str, value: Bufferable, *, root: int, priority: int = 0, step: int | None = None
    ) -> Handle[Bufferable]:
        """Overwrite `value` with the root's on every rank."""
        buffer = Buffer.of(value, f"tensor {name!r}").to_write(f"tensor {name!r}")
        return self.launch(
            Declaration(name=name, shape=buffer.shape, dtype=buffer.dtype, operation=Operation.BROADCAST, root=root),
            source=buffer.address,
            destination=buffer.address,
            result=Kept(buffer, value),
            priority=priority,
            step=step,
        )

    def broadcast(
        self, name: str, value: Bufferable, *, root: int, priority: int = 0, timeout_s: float | None = None
    ) -> Bufferable:
        return self.broadcast_async(name, value, root=root, priority=priority).wait(timeout_s)

    def reducescatter_async(
        self, name: str, value: Bufferable, *, reduction: str = "sum", priority: int = 0
    ) -> Handle[Array]:
        """Reduce `value` and give each rank its share of the rows; the first ranks get one more where it must be."""
        buffer = Buffer.of(value, f"tensor {name!r}")
        rows = uneven.even_rows(buffer.rows(f"tensor {name!r}"), self.size)
        row_bytes = buffer.num_bytes // buffer.shape[0] if buffer.shape[0] else 0
        out = np.empty((rows[self.rank], *buffer.shape[1:]), numpy_dtype(buffer.dtype))
        return self.launch(
            Declaration(
                name=name,
                shape=buffer.shape,
                dtype=buffer.dtype,
                operation=Operation.REDUCE_SCATTER,
                segments=tuple(count * row_bytes for count in rows),
                reduction=reduction,
            ),
            source=buffer.address,
            destination=out.ctypes.data - sum(rows[: self.rank]) * row_bytes,
            result=Kept(buffer, out),
            reduction=reduction,
            priority=priority,
        )

    def reducescatter(
        self, name: str, value: Bufferable, *, reduction: str = "sum", timeout_s: float | None = None
    ) -> Array:
        return self.reducescatter_async(name, value, reduction=reduction).wait(timeout_s)

    def allgather(self, name: str, value: Bufferable, *, timeout_s: float | None = None) -> Array:
        """The rows of all ranks, one after another; ranks may have different numbers of them."""
        return uneven.allgather(self, name, Buffer.of(value, f"tensor {name!r}"), timeout_s or self._timeout_s)

    def allgather_async(self, name: str, value: Bufferable) -> Handle[Array]:
        return self._in_background(f"allgather {name}", lambda: self.allgather(name, value))

    def alltoall(
        self,
        name: str,
        value: Bufferable,
        splits: Sequence[int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> tuple[Array, tuple[int, ...]]:
        """Send `splits[r]` rows to each rank r (equal shares by default): what came, and how many rows from whom."""
        buffer = Buffer.of(value, f"tensor {name!r}")
        return uneven.alltoall(self, name, buffer, splits, timeout_s or self._timeout_s)

    def alltoall_async(
        self, name: str, value: Bufferable, splits: Sequence[int] | None = None
    ) -> Handle[tuple[Array, tuple[int, ...]]]:
        return self._in_background(f"alltoall {name}", lambda: self.alltoall(name, value, splits))

    def push_pull_rows(
        self,
        name: str,
        rows: Rows | None,
        *,
        shape: tuple[int, ...],
        dtype: str = "float32",
        timeout_s: float | None = None,
    ) -> Rows | None:
        """The sum of some rows of a table of this shape; None has none to give, or says that nobody had.

        Each rank may have other rows, the same several times. Travels as the whole table where that is fewer bytes.
        """
        return sparse_rows.push_pull(self, name, rows, shape, dtype, timeout_s or self._timeout_s)

    def push_pull_rows_async(
        self, name: str, rows: Rows | None, *, shape: tuple[int, ...], dtype: str = "float32"
    ) -> Handle[Rows | None]:
        return self._in_background(f"rows {name}", lambda: self.push_pull_rows(name, rows, shape=shape, dtype=dtype))

    def barrier_async(self) -> Handle[None]:
        token = Buffer.of(np.zeros(1, np.uint8), "barrier")
        return self.launch(
            Declaration(name="legato/barrier", shape=(1,), dtype="uint8", operation=Operation.ALL_REDUCE),
            source=token.address,
            destination=token.address,
            result=Kept(token, None),
        )

    def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until every rank has come here."""
        self.barrier_async().wait(timeout_s)

    # ---- what the operations are made of ----

    def launch(
        self,
        tensor: Declaration,
        *,
        source: int,
        destination: int,
        result: Callable[[], T],
        reduction: str = "sum",
        priority: int = 0,
        step: int | None = None,
        manual: bool = False,
        absent: bool = False,
        scale: Scale | None = None,
    ) -> TaskHandle[T]:
        """Give a task to the engine as soon as its tensor is agreed on.

        Addresses are those where the whole tensor would begin: a rank that holds one segment of it passes an address
        before its own memory, and the engine touches only that segment. With a `scale`, nothing is sent before it
        has been agreed on.
        """
        self.check_open()
        with self._lock:
            number = self._next_step(tensor.name, step)

            def submit(definition: Definition) -> _native.Handle:
                try:
                    return self.session.engine.submit(
                        tensor=definition.id,
                        step=number,
                        priority=priority,
                        source=source & _ADDRESS_MASK,
                        destination=destination & _ADDRESS_MASK,
                        reduction=reduction,
                        manual=manual,
                        absent=absent,
                        after=None if scale is None else scale.handle.started(),
                        scale=0 if scale is None else scale.value.ctypes.data,
                    )
                except (ValueError, RuntimeError) as error:
                    raise self.session.refusal(error, tensor.name, number) from None

            handle = TaskHandle(
                tensor=tensor.name,
                step=number,
                task=self._start(tensor, number, submit),
                result=result,
                explain=self.session.explain,
                forget=self._forget,
                timeout_s=self._timeout_s,
            )
            self._latest[tensor.name] = (number, handle)
        return handle

    def number(self, name: str) -> int:
        """The engine's number of a tensor that has been agreed on."""
        return self.session.player.number(name)

    def _start(self, tensor: Declaration, step: int, submit: _Submit) -> "_native.Handle | Future[_native.Handle]":
        """Submit a task now if its tensor is agreed on and no plan round holds its step back; otherwise when it is."""
        member, player = self.session.member, self.session.player
        planned = tensor.operation is Operation.PUSH_PULL
        definition = member.definition(tensor)
        if definition is not None and (not planned or player.admit(step)):
            return submit(definition)
        later: Future[_native.Handle] = Future()

        def begin(definition: Definition) -> None:
            try:
                later.set_result(submit(definition))
            except LegatoError as error:
                later.set_exception(error)

        def go_on(known: "Future[Definition]") -> None:
            error = known.exception()
            if error is not None:
                later.set_exception(error)
            elif planned:
                player.begin(step, lambda: begin(known.result()))
            else:
                begin(known.result())

        member.declare([tensor])[0].add_done_callback(go_on)
        return later

    def _forget(self, name: str, step: int) -> None:
        """An operation has been waited for: its memory is its owner's alone again."""
        with self._lock:
            if self._latest[name][0] == step:
                self._latest[name] = (step, None)

    def _next_step(self, name: str, step: int | None) -> int:
        latest, handle = self._latest.get(name, (-1, None))
        if handle is not None and not handle.poll():
            raise InputError(f"tensor {name!r}: step {latest} is still under way; wait for its handle first")
        if step is not None and step <= latest:
            raise InputError(f"tensor {name!r}: step is {step}, but step {latest} has been there already")
        return latest + 1 if step is None else step

    def _push_pull_meaning(
        self, name: str, source: Buffer, reduction: str, step: int | None, compression: str | None
    ) -> Declaration:
        """What a push_pull declares; where `declare` left something open, it stays open."""
        operation = Operation.ALL_REDUCE if step is None else Operation.PUSH_PULL
        known = self.session.member.meaning(name)
        if known is not None and known.operation in _PUSH_PULLS:
            same = (known.shape, known.dtype) == (source.shape, source.dtype)
            if same and known.reduction in (None, reduction) and compression in (None, known.compression):
                return known
            return replace(known, shape=source.shape, dtype=source.dtype, reduction=reduction, compression=compression)
        return Declaration(
            name=name,
            shape=source.shape,
            dtype=source.dtype,
            operation=operation,
            reduction=reduction,
            compression=compression,
        )

    def _in_background(self, name: str, work: Callable[[], T]) -> Handle[T]:
        self.check_open()
        with self._lock:
            number = self._next_step(name, None)
            handle = ThreadHandle(name, work, self._timeout_s)
            self._latest[name] = (number, handle)
        return handle

    def check_open(self) -> None:
        """ClosedError once the group is."""
        if self.session.closed:
            raise ClosedError("the group is closed; make a new one to go on")


def _like(destination: Buffer, source: Buffer, name: str) -> Buffer:
    """The destination, when it can take what the source's tensor becomes."""
    if (destination.num_bytes, destination.dtype) != (source.num_bytes, source.dtype):
        raise InputError(
            f"tensor {name!r}: out is {destination.dtype} of {destination.num_bytes} bytes, "
            f"the value {source.dtype} of {source.num_bytes}"
        )
    return destination.to_write(f"tensor {name!r}")


def _settled(known: "Future[Definition]", name: str, timeout_s: float) -> None:
    try:
        known.result(timeout_s + _GRACE_S)
    except TimeoutError as error:
        if isinstance(error, LegatoError):
            raise
        raise DeadlineError(f"tensor {name!r}: rank 0, which conducts the job, does not answer", tensor=name) from None
