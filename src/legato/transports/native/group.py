"""The native group: collective operations over legato's own engine, blocking or with a handle."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from legato._native import Collector
from legato.core.plan import Plan
from legato.errors import DeadlineError, InputError
from legato.transports.buffer import Array, Buffer, Bufferable, numpy_dtype
from legato.transports.declaration import Declaration, Operation
from legato.transports.native import adasum as combination
from legato.transports.native import rows as sparse_rows
from legato.transports.native import uneven_rows as uneven
from legato.transports.native.channel import Channel, agree_on_scale
from legato.transports.native.handle import Handle, TaskHandle, ThreadHandle
from legato.transports.native.rows import Rows
from legato.transports.native.session import NativeConfig, Session
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.member import in_time

T = TypeVar("T")

_PUSH_PULLS = (Operation.PUSH_PULL, Operation.ALL_REDUCE, Operation.ACCUMULATE)
_GRACE_S = 5.0
"""What a rank waits beyond the conductor's deadline, so that it hears the reason from the conductor."""


class NativeGroup:
    """A worker among others. Constructing it joins the job, closing it leaves.

    Every operation has a name. The first use declares it: all ranks must use it, with the same shape, dtype, operation
    and root, and hear at once when they do not. From then on no rank waits for another but through the data itself.
    Steps of a name count from 0 by themselves, or are given; a name's next step begins after the last one is over.
    """

    def __init__(self, config: NativeConfig, conductor: Conductor | None = None) -> None:
        """`conductor` is one that is open already, for rank 0."""
        if config.member.rank is None:
            raise InputError("rank is None: a server has no group, it serves (legato.transports.native.session)")
        self.rank = config.member.rank
        self.size = config.member.deployment.num_workers
        self._timeout_s = config.member.timeout_s
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._background: dict[str, Handle[object]] = {}
        """Operations in several phases, by name."""
        self._collectors: list[tuple[Sequence[str], Collector]] = []
        self._adopted: list[NativeGroup] = []
        self.session = Session(config, conductor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(now=error is not None)

    def close(self, *, now: bool = False) -> None:
        """Leave the job, when everybody does or at the timeout; with `now`, at once. Can be called twice."""
        for adopted in self._adopted:
            adopted.close(now=now)
        with self._lock:
            steps = {name: channel.latest_step for name, channel in self._channels.items()}
            for names, collector in self._collectors:
                steps.update(zip(names, collector.latest_steps, strict=True))
        self.session.close(steps, now=now)

    def adopt(self, group: "NativeGroup") -> None:
        """Close another group before this one, at the latest."""
        self._adopted.append(group)

    def keep(self, names: Sequence[str], collector: Collector) -> None:
        """Of tensors that have been agreed on: what they lend to the engine stays alive as long as the group."""
        with self._lock:
            self._collectors.append((names, collector))

    def declare(self, tensors: Sequence[Declaration]) -> None:
        """Agree on tensors with all ranks, in one round trip for all of them: faster than at their first use."""
        self.check_open()
        for tensor, known in zip(tensors, self.session.member.declare(tensors), strict=True):
            words = f"tensor {tensor.name!r}: rank 0, which conducts the job, does not answer"
            late = partial(DeadlineError, words, tensor=tensor.name)
            patience = self.session.member.patience(tensor.name, None)
            in_time(known, self._timeout_s + _GRACE_S, late, patience)

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
        what = f"tensor {name!r}"
        source = Buffer.of(value, what)
        target = value if out is None else out
        destination = source.to_write(what) if out is None else _like(Buffer.of(out, what), source, what)
        meaning = self._push_pull_meaning(name, source, reduction, step, compression)
        scale = agree_on_scale(self, meaning, source, step=step, absent=absent)
        return self.channel(meaning).launch(
            source=source.address,
            destination=destination.address,
            num_bytes=source.num_bytes,
            memory=(source, destination, scale),
            result=target,
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
        step: int | None = None,
        compression: str | None = None,
        timeout_s: float | None = None,
    ) -> Bufferable:
        handle = self.push_pull_async(name, value, out=out, reduction=reduction, step=step, compression=compression)
        return handle.wait(timeout_s)

    def broadcast_async(self, name: str, value: Bufferable, *, root: int) -> Handle[Bufferable]:
        """Overwrite `value` with the root's on every rank."""
        buffer = Buffer.of(value, f"tensor {name!r}").to_write(f"tensor {name!r}")
        tensor = Declaration(
            name=name, shape=buffer.shape, dtype=buffer.dtype, operation=Operation.BROADCAST, root=root
        )
        return self.channel(tensor).launch(
            source=buffer.address,
            destination=buffer.address,
            num_bytes=buffer.num_bytes,
            memory=buffer,
            result=value,
        )

    def broadcast(self, name: str, value: Bufferable, *, root: int) -> Bufferable:
        return self.broadcast_async(name, value, root=root).wait()

    def reducescatter_async(self, name: str, value: Bufferable, *, reduction: str = "sum") -> Handle[Array]:
        """Reduce `value` and give each rank its share of the rows; the first ranks get one more where it must be."""
        buffer = Buffer.of(value, f"tensor {name!r}")
        rows = uneven.even_rows(buffer.rows(f"tensor {name!r}"), self.size)
        row_bytes = buffer.num_bytes // buffer.shape[0] if buffer.shape[0] else 0
        out = np.empty((rows[self.rank], *buffer.shape[1:]), numpy_dtype(buffer.dtype))
        tensor = Declaration(
            name=name,
            shape=buffer.shape,
            dtype=buffer.dtype,
            operation=Operation.REDUCE_SCATTER,
            segments=tuple(count * row_bytes for count in rows),
            reduction=reduction,
        )
        return self.channel(tensor).launch(
            source=buffer.address,
            destination=out.ctypes.data,
            num_bytes=buffer.num_bytes,
            memory=(buffer, out),
            result=out,
            reduction=reduction,
            destination_segment=(sum(rows[: self.rank]) * row_bytes, out.nbytes),
        )

    def reducescatter(self, name: str, value: Bufferable, *, reduction: str = "sum") -> Array:
        return self.reducescatter_async(name, value, reduction=reduction).wait()

    def allgather(self, name: str, value: Bufferable) -> Array:
        """The rows of all ranks, one after another; ranks may have different numbers of them."""
        return uneven.allgather(self, name, Buffer.of(value, f"tensor {name!r}"), self._timeout_s)

    def allgather_async(self, name: str, value: Bufferable) -> Handle[Array]:
        return self._in_background(f"allgather {name}", lambda: self.allgather(name, value))

    def alltoall(
        self, name: str, value: Bufferable, splits: Sequence[int] | None = None
    ) -> tuple[Array, tuple[int, ...]]:
        """Send `splits[r]` rows to each rank r (equal shares by default): what came, and how many rows from whom."""
        buffer = Buffer.of(value, f"tensor {name!r}")
        return uneven.alltoall(self, name, buffer, splits, self._timeout_s)

    def alltoall_async(
        self, name: str, value: Bufferable, splits: Sequence[int] | None = None
    ) -> Handle[tuple[Array, tuple[int, ...]]]:
        return self._in_background(f"alltoall {name}", lambda: self.alltoall(name, value, splits))

    def adasum(self, name: str, value: Array) -> Array:
        """All ranks' vectors, of float32 or float64, combined by Adasum; there must be 1, 2, 4, 8 … ranks."""
        return combination.adasum(self, name, value, self._timeout_s)

    def adasum_async(self, name: str, value: Array) -> Handle[Array]:
        return self._in_background(f"adasum {name}", lambda: self.adasum(name, value))

    def push_pull_rows(
        self, name: str, rows: Rows | None, *, shape: tuple[int, ...], dtype: str = "float32"
    ) -> Rows | None:
        """The sum of some rows of a table of this shape; None has none to give, or says that nobody had.

        Each rank may have other rows, the same several times. Travels as the whole table where that is fewer bytes.
        """
        return sparse_rows.push_pull(self, name, rows, shape, dtype, self._timeout_s)

    def push_pull_rows_async(
        self, name: str, rows: Rows | None, *, shape: tuple[int, ...], dtype: str = "float32"
    ) -> Handle[Rows | None]:
        return self._in_background(f"rows {name}", lambda: self.push_pull_rows(name, rows, shape=shape, dtype=dtype))

    def barrier_async(self) -> Handle[None]:
        token = Buffer.of(np.zeros(1, np.uint8), "barrier")
        tensor = Declaration(name="legato/barrier", shape=(1,), dtype="uint8", operation=Operation.ALL_REDUCE)
        return self.channel(tensor).launch(
            source=token.address,
            destination=token.address,
            num_bytes=token.num_bytes,
            memory=token,
            result=None,
        )

    def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until every rank has come here."""
        self.barrier_async().wait(timeout_s)

    # ---- what the operations are made of ----

    def channel(self, tensor: Declaration) -> Channel:
        """Where operations on a tensor are launched."""
        self.check_open()
        channel = self._channels.get(tensor.name)
        if channel is None:
            with self._lock:
                channel = self._channels.setdefault(tensor.name, Channel(self.session, tensor))
        if channel.tensor is tensor or channel.tensor == tensor:
            return channel
        # A name has one meaning: a channel for another one only hears so from the conductor.
        return Channel(self.session, tensor)

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
            earlier = self._background.get(name)
            if earlier is not None and not earlier.poll():
                raise InputError(f"{name} is still under way; wait for its handle first")
            handle = ThreadHandle(name, work, self._timeout_s)
            self._background[name] = handle
        return handle

    def check_open(self) -> None:
        """ClosedError once the group is."""
        self.session.check_open()


def _like(destination: Buffer, source: Buffer, what: str) -> Buffer:
    """The destination, when it can take what the source's tensor becomes."""
    if (destination.num_bytes, destination.dtype) != (source.num_bytes, source.dtype):
        raise InputError(
            f"{what}: out is {destination.dtype} of {destination.num_bytes} bytes, "
            f"the value {source.dtype} of {source.num_bytes}"
        )
    return destination.to_write(what)
