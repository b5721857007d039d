"""Operations: the group's collectives on tensors of any layout and device."""

import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

import torch

from legato.errors import InputError, JobError, UnsupportedError
from legato.job import Job
from legato.torch import api
from legato.torch.compat.handles import FinishedWork, Pending, Work
from legato.torch.compat.joined import Call, JoinedRanks
from legato.torch.compat.names import Names
from legato.torch.sync.native import dtype_name
from legato.torch.sync.rows import dtype_of_rows, rows_of, table_of, tensor_of
from legato.transports.buffer import Array, Buffer
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import Handle
from legato.transports.native.rows import Rows


class ReduceOp(StrEnum):
    """A reduction; its value is the transports' name for it."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


def chosen(op: ReduceOp | None, average: bool | None = None) -> ReduceOp:
    """What is meant by `op`, or by `average`, which came before it: one of them, or the average."""
    if op is not None and average is not None:
        raise InputError(f"op={op!s} and average={average}: give op alone, it says the same and more")
    if average is not None:
        return Average if average else Sum
    if op is None:
        return Average
    if op not in tuple(ReduceOp):
        raise InputError(f"op is {op!r}, accepted are {', '.join(each.name.title() for each in ReduceOp)}")
    return ReduceOp(op)


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """How values are combined, and scaled before and after."""

    op: ReduceOp = Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0

    def checked(self, tensor: torch.Tensor) -> "Reduction":
        if tensor.dtype is torch.bool and self.op in (Average, Sum):
            raise InputError(f"op {self.op!s} of booleans: use Max (any), Min (all), or a tensor of numbers")
        if tensor.is_sparse:
            raise InputError("a sparse tensor is reduced by sparse_allreduce_async; or give tensor.to_dense()")
        if self.op is Adasum and not tensor.is_floating_point():
            raise InputError(f"op adasum of {tensor.dtype}: accepted are tensors of floating-point numbers")
        return self


class Operations:
    """What one rank starts; each method begins an operation and returns its handle. Among one, the identity."""

    def __init__(self, group: NativeGroup | None, rank: int, ranks: Sequence[int], *, is_whole: bool) -> None:
        """Of a whole job, or of some of its `ranks`, whose group it is; this is one of these."""
        self.group = group
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(rank)
        """This rank's place among them."""
        self._is_whole = is_whole
        self._num_names = 0
        self._meant: dict[str, Call] = {}
        """What each of the group's names means here."""
        self._turns: dict[str, int] = defaultdict(int)
        """How often this rank has used each name of the group's."""
        self._answers: dict[str, Handle[Any]] = {}
        """By name, what this rank has taken part in since it has joined."""
        self.joined = JoinedRanks(group) if group is not None and is_whole else None
        """Who is out of data; of the whole job."""
        self._names = Names()
        self._under_way: weakref.WeakValueDictionary[str, Pending[Any]] = weakref.WeakValueDictionary()
        self._measured = (time.monotonic(), 0)

    def allreduce(
        self,
        tensor: torch.Tensor,
        name: str | None,
        reduction: Reduction,
        *,
        in_place: bool = False,
        priority: int = 0,
    ) -> Work[torch.Tensor]:
        """Reduce over all ranks, into a new tensor or in place."""
        reduction.checked(tensor)
        target = tensor.detach() if in_place else torch.empty_like(tensor, requires_grad=False)
        sent = _scaled(tensor.detach(), reduction.prescale_factor)

        def finish(wire: torch.Tensor) -> torch.Tensor:
            whole = wire.view(tensor.dtype) if tensor.dtype is torch.bool else wire
            result = _scaled(whole, reduction.postscale_factor)
            if result.data_ptr() != target.data_ptr():
                target.copy_(result)
            return tensor if in_place else target

        if self.group is None:
            return FinishedWork(finish(_on_host(sent)))
        if reduction.op is Adasum:
            return self._adasum(sent, name, finish)
        source = _on_host(sent)
        # The result may arrive in the target's own memory, where it lies there in the same way.
        into = _on_host(target)
        known = self._claim("allreduce", name, source.shape, source.dtype, reduction.op)
        handle = self.group.push_pull_async(
            known, _buffer_of(source), out=_buffer_of(into), reduction=str(reduction.op), priority=priority
        )
        return self._pending(known, handle, lambda _: finish(into))

    def _adasum(
        self, tensor: torch.Tensor, name: str | None, finish: Callable[[torch.Tensor], torch.Tensor]
    ) -> Work[torch.Tensor]:
        assert self.group is not None
        check_adasum(self.size)
        # A vector of its own: the products of a narrow one would lose too much.
        wide = tensor.double() if tensor.dtype is torch.float64 else tensor.float()
        vector = wide.cpu().reshape(-1).numpy().copy()
        known = self._claim("adasum", name, tensor.shape, tensor.dtype)
        handle = self.group.adasum_async(known, vector)

        def settle(combined: Array) -> torch.Tensor:
            return finish(torch.from_numpy(combined).view(tensor.shape).to(tensor.dtype))

        return self._pending(known, handle, settle)

    def sparse_allreduce(self, tensor: torch.Tensor, name: str | None, op: ReduceOp) -> Work[torch.Tensor]:
        """The sum or average of all ranks' sparse tensors, each of some rows of the same table; sparse again."""
        if not tensor.is_sparse or op not in (Average, Sum):
            raise InputError(f"op {op!s} of a {tensor.layout}: accepted are Average and Sum of sparse tensors")
        if self.group is None:
            return FinishedWork(tensor.detach().coalesce())
        group, dtype = self.group, dtype_of_rows(tensor, name or "sparse")
        num_sparse = tensor.sparse_dim()
        known = self._claim("sparse", name, tensor.shape, tensor.dtype, op, num_sparse)
        table = table_of(tensor.shape, num_sparse)
        handle = group.push_pull_rows_async(known, rows_of(tensor), shape=table, dtype=dtype)

        def finish(rows: Rows) -> torch.Tensor:
            total = tensor_of(rows, tensor, num_sparse)
            return total / group.size if op is Average else total

        return self._pending(known, handle, finish)

    def broadcast(
        self, tensor: torch.Tensor, root: int, name: str | None, *, in_place: bool = False
    ) -> Work[torch.Tensor]:
        """The root's values, in a new tensor or in place."""
        target = tensor.detach() if in_place else tensor.detach().clone()
        if self.group is None:
            if root != self.ranks[0]:
                raise InputError(f"root rank is {root}; in a job of one it can only be {self.ranks[0]}")
            return FinishedWork(tensor if in_place else target)
        place = self.place_of(root)
        wire = _on_host(target)
        known = self._claim("broadcast", name, wire.shape, wire.dtype, place)
        handle = self.group.broadcast_async(known, _buffer_of(wire), root=place)

        def finish(_: object) -> torch.Tensor:
            if wire.data_ptr() != target.data_ptr():
                target.copy_(wire.view(target.dtype))
            return tensor if in_place else target

        return self._pending(known, handle, finish)

    def allgather(self, tensor: torch.Tensor, name: str | None) -> Work[torch.Tensor]:
        """The rows of all ranks, one after another."""
        if self.group is None:
            return FinishedWork(tensor.detach().clone())
        wire = _on_host(tensor)
        known = self._claim("allgather", name, wire.shape[1:], wire.dtype)
        handle = self.group.allgather_async(known, _buffer_of(wire))
        return self._pending(known, handle, lambda array: _as_tensor(array, tensor))

    def alltoall(
        self, tensor: torch.Tensor, splits: Sequence[int] | None, name: str | None
    ) -> Work[tuple[torch.Tensor, torch.Tensor]]:
        """Rows from each rank for each rank: what came, and how many rows from whom."""
        if self.group is None:
            _check_solo_splits(tensor, splits)
            return FinishedWork((tensor.detach().clone(), torch.tensor([tensor.shape[0]], dtype=torch.int32)))
        wire = _on_host(tensor)
        known = self._claim("alltoall", name, wire.shape[1:], wire.dtype)
        handle = self.group.alltoall_async(known, _buffer_of(wire), splits)
        return self._pending(
            known,
            handle,
            lambda came: (_as_tensor(came[0], tensor), torch.tensor(came[1], dtype=torch.int32)),
        )

    def reducescatter(self, tensor: torch.Tensor, name: str | None, reduction: Reduction) -> Work[torch.Tensor]:
        """This rank's share of the rows, reduced over all ranks."""
        reduction.checked(tensor)
        sent = _on_host(_scaled(tensor.detach(), reduction.prescale_factor))
        if self.group is None:
            return FinishedWork(_scaled(sent.view(tensor.dtype).to(tensor.device), reduction.postscale_factor).clone())
        known = self._claim("reducescatter", name, sent.shape, sent.dtype, reduction.op)
        handle = self.group.reducescatter_async(known, _buffer_of(sent), reduction=str(reduction.op))
        return self._pending(
            known, handle, lambda array: _scaled(_as_tensor(array, tensor), reduction.postscale_factor)
        )

    def place_of(self, rank: int) -> int:
        """Where a rank of the job is among these. Of the whole job also one that is not there: all ranks hear of it."""
        if rank in self.ranks:
            return self.ranks.index(rank)
        if not self._is_whole:
            raise InputError(f"rank {rank} is not in the process set; accepted are {', '.join(map(str, self.ranks))}")
        return rank

    def barrier(self) -> None:
        """Wait until every rank has come here; those that have joined are not waited for."""
        self.allreduce(torch.zeros(1, dtype=torch.uint8), "legato/barrier", Reduction(op=Sum)).wait()

    def speed(self) -> float:
        """Megabytes per second that this rank has sent and received since the last call, through memory too."""
        before_s, before = self._measured
        counters = {} if self.group is None else self.group.session.engine.statistics()
        now_s = time.monotonic()
        moved = sum(counters.get(name, 0) for name in ("bytes_sent", "bytes_received", "bytes_shared"))
        self._measured = (now_s, moved)
        return (moved - before) / 1e6 / max(now_s - before_s, 1e-9)

    def new_name(self, kind: str) -> str:
        """A name that every one of these ranks gives to the same thing, as `Job.name`; never one of the job's."""
        self._num_names += 1
        return f"{kind}/{self._num_names}"

    def answer_all(self, check: Callable[[], None], limit_s: float | None) -> int:
        """Take part in the others' sums with nothing, from `joined.enter` until all have joined: the last one."""
        assert self.joined is not None
        last = self.joined.answer_all(self._answer, check, limit_s)
        for handle in self._answers.values():
            handle.wait()
        self._answers.clear()
        return last

    def _answer(self, call: Call) -> None:
        if call.turn <= self._turns[call.known]:
            return  # this rank has started it, before it joined or for another that asked
        known = self._names.claim(call.kind, call.name, (call.shape, *call.words))
        self._turns[known] += 1
        if (known, self._turns[known]) != (call.known, call.turn):
            raise JobError(
                f"{call.known!r}: this rank would call it {known!r}; all must start the same until they join"
            )
        if not call.can_be_answered:
            self._names.give_up(known)
            return
        assert self.group is not None
        earlier = self._answers.get(known) or self._under_way.get(known)
        if earlier is not None:
            earlier.wait()
        dtype, op = call.words
        zeros = torch.zeros(call.shape, dtype=getattr(torch, dtype))
        self._answers[known] = self.group.push_pull_async(known, _buffer_of(zeros), reduction=op, absent=True)

    def _claim(self, kind: str, name: str | None, shape: Sequence[int], dtype: torch.dtype, *others: object) -> str:
        words = (str(dtype).removeprefix("torch."), *map(str, others))
        known = self._names.claim(kind, name, (tuple(shape), *words))
        earlier = self._under_way.get(known)
        if name is None and earlier is not None:
            earlier.wait()  # its turn in the ring has come again
        self._meant[known] = Call(kind, name, tuple(shape), words, known, 0)
        return known

    def _pending(self, known: str, handle: Handle[Any], finish: Any) -> Pending[Any]:
        def finished(brought: Any) -> Any:
            if self.joined is not None:
                self.joined.over(known)
            return finish(brought)

        def failed() -> None:
            if self.joined is not None:
                self.joined.over(known)
            self._names.give_up(known)

        pending = Pending(handle, finished, failed)
        self._under_way[known] = pending
        self._turns[known] += 1
        if self.joined is not None:
            self.joined.started(replace(self._meant[known], turn=self._turns[known]))
        return pending


_of_job: weakref.WeakKeyDictionary[Job, Operations] = weakref.WeakKeyDictionary()
"""The operations of every job that has used any: they count names, so there is one for each."""


def operations(job: Job | None = None) -> Operations:
    """The operations of a job: the one given, or what `init` started. Each epoch of an elastic job has its own."""
    job = api.current(job)
    if job not in _of_job or (job.is_elastic and _of_job[job].group is not _group_of(job)):
        _of_job[job] = Operations(_group_of(job), job.rank, range(job.size), is_whole=True)
    return _of_job[job]


def _group_of(job: Job) -> NativeGroup | None:
    return job.group if job.size > 1 else None


def check_adasum(size: int) -> None:
    """Ranks combine in pairs, and pairs of pairs: refuse a number that leaves one over."""
    if size & (size - 1):
        raise UnsupportedError(f"op adasum combines 2, 4, 8 ... ranks, and here are {size}; use op=Average")


def _check_solo_splits(tensor: torch.Tensor, splits: Sequence[int] | None) -> None:
    if splits is not None and [int(split) for split in splits] != [tensor.shape[0]]:
        raise InputError(f"splits are {list(splits)}; in a job of one they can only be [{tensor.shape[0]}]")


# ---- memory, as the transports take it ----


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values in one stretch of the host's memory: its own where they already are, else a copy.

    The engine knows no booleans: they travel as bytes of 0 and 1.
    """
    plain = tensor.detach().cpu().contiguous()
    return plain.view(torch.uint8) if plain.dtype is torch.bool else plain


def _buffer_of(wire: torch.Tensor) -> Buffer:
    """The memory of a tensor made by `_on_host`; the buffer keeps it alive."""
    return Buffer(address=wire.data_ptr(), shape=tuple(wire.shape), dtype=dtype_name(wire.dtype), owner=wire)


def _as_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    """What arrived, as a tensor of the dtype and on the device of what was sent."""
    wire = torch.from_numpy(array)  # bfloat16 has no numpy: its bits come as uint16
    return (wire if wire.dtype is like.dtype else wire.view(like.dtype)).to(like.device)


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times a factor, in its own dtype; the tensor itself where the factor is 1. Integers as doubles."""
    if factor == 1.0:
        return tensor
    wide = tensor if tensor.is_floating_point() else tensor.double()
    return (wide * factor).to(tensor.dtype)
