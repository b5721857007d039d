"""Horovod's functions on tensors.

All ranks of the job, or of the `process_set`, call the same functions, with the same names or without any in the same
order. The input may have any layout, any of the dtypes in `ITEM_BYTES` or bool, and lie on any device (other than the
host's: through a copy there).
"""

from collections.abc import Callable, Sequence

import torch

from legato.errors import InputError
from legato.torch.compat.differentiable import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    ReduceScatter,
    apply,
    names_in_group,
)
from legato.torch.compat.handles import Together, Work
from legato.torch.compat.operations import Average, ReduceOp, Reduction, chosen
from legato.torch.compat.process_sets import ProcessSet, global_process_set, operations_of
from legato.torch.compression import Compression, Compressor


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The reduction of all ranks' tensors; the average, unless `op` says otherwise. Differentiable."""
    (result,) = grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )
    return result


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Work[torch.Tensor]:
    reduction = _reduction(op, average, prescale_factor, postscale_factor)
    return operations_of(process_set).allreduce(tensor, name, reduction)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `allreduce`, in place."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Work[torch.Tensor]:
    reduction = _reduction(op, average, prescale_factor, postscale_factor)
    return operations_of(process_set).allreduce(tensor, name, reduction, in_place=True)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
) -> Work[torch.Tensor]:
    """The average or sum of sparse tensors: rows that several ranks have are added, and only rows travel."""
    return operations_of(process_set).sparse_allreduce(tensor, name, op)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allreduce` of several tensors that travel together. Differentiable."""
    _check_some(tensors)
    reduction = _reduction(op, average, prescale_factor, postscale_factor)
    compressed, contexts = zip(*map(compression.compress, tensors), strict=True)
    reduced = apply(AllReduce, operations_of(process_set), name, reduction, *compressed)
    return [compression.decompress(each, context) for each, context in zip(reduced, contexts, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Work[list[torch.Tensor]]:
    reduction, start = _reduction(op, average, prescale_factor, postscale_factor), operations_of(process_set).allreduce
    return _grouped(tensors, name, lambda tensor, each: start(tensor, each, reduction))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `grouped_allreduce`, in place."""
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Work[list[torch.Tensor]]:
    reduction, start = _reduction(op, average, prescale_factor, postscale_factor), operations_of(process_set).allreduce
    return _grouped(tensors, name, lambda tensor, each: start(tensor, each, reduction, in_place=True))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The rows of all ranks' tensors, in rank order; ranks may have different numbers of them. Differentiable."""
    (gathered,) = grouped_allgather([tensor], name, process_set)
    return gathered


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Work[torch.Tensor]:
    return operations_of(process_set).allgather(tensor, name)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors that travel together. Differentiable."""
    _check_some(tensors)
    return list(apply(AllGather, operations_of(process_set), name, *tensors))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Work[list[torch.Tensor]]:
    return _grouped(tensors, name, operations_of(process_set).allgather)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor on every rank; the root is a rank of the job, also in a process set. Differentiable."""
    received: torch.Tensor = apply(Broadcast, operations_of(process_set), name, root_rank, tensor)
    return received


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Work[torch.Tensor]:
    return operations_of(process_set).broadcast(tensor, root_rank, name)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As `broadcast`, in place."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Work[torch.Tensor]:
    return operations_of(process_set).broadcast(tensor, root_rank, name, in_place=True)


def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send `splits[r]` rows to each rank r, or equal shares: what came; with splits, also how many rows from whom.

    Differentiable.
    """
    output, received = apply(AllToAll, operations_of(process_set), name, _splits(splits), tensor)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Work[torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
    started = operations_of(process_set).alltoall(tensor, _splits(splits), name)
    return started if splits is not None else _First(started)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's share of the rows of the reduction; the first ranks get one more where it must be. Differentiable."""
    (share,) = grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)
    return share


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Work[torch.Tensor]:
    reduction = _reduction(op, None, prescale_factor, postscale_factor)
    return operations_of(process_set).reducescatter(tensor, name, reduction)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors that travel together. Differentiable."""
    _check_some(tensors)
    reduction = _reduction(op, None, prescale_factor, postscale_factor)
    compressed, contexts = zip(*map(compression.compress, tensors), strict=True)
    shares = apply(ReduceScatter, operations_of(process_set), name, reduction, *compressed)
    return [compression.decompress(each, context) for each, context in zip(shares, contexts, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Work[list[torch.Tensor]]:
    reduction, start = _reduction(op, None, prescale_factor, postscale_factor), operations_of(process_set).reducescatter
    return _grouped(tensors, name, lambda tensor, each: start(tensor, each, reduction))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank has come here."""
    operations_of(process_set).barrier()


class _First:
    """Only the first of what an operation brings."""

    def __init__(self, pair: Work[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._pair = pair

    def poll(self) -> bool:
        return self._pair.poll()

    def wait(self) -> torch.Tensor:
        return self._pair.wait()[0]


def _reduction(op: ReduceOp | None, average: bool | None, prescale_factor: float, postscale_factor: float) -> Reduction:
    return Reduction(op=chosen(op, average), prescale_factor=prescale_factor, postscale_factor=postscale_factor)


def _grouped(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    start: Callable[[torch.Tensor, str | None], Work[torch.Tensor]],
) -> Work[list[torch.Tensor]]:
    _check_some(tensors)
    named = zip(tensors, names_in_group(name, len(tensors)), strict=True)
    return Together([start(tensor, each) for tensor, each in named])


def _check_some(tensors: Sequence[torch.Tensor]) -> None:
    if not tensors:
        raise InputError("a group of no tensors; give at least one")


def _splits(splits: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        if splits.is_floating_point():
            raise InputError(f"splits are {splits.dtype}; accepted are integers")
        return [int(split) for split in splits.tolist()]
    return [int(split) for split in splits]
