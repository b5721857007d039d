"""Collectives with Horovod's gradients.

Legato's gradients are those of the sum of all ranks' losses. Horovod's are the same but for a factor: those of
`allgather` and `broadcast` are divided by the number of ranks, and those of `reducescatter` multiplied by it.
"""

from collections.abc import Sequence

import torch

from legato.torch.compat import collectives
from legato.torch.compat.differentiable import weighted
from legato.torch.compat.handles import Work
from legato.torch.compat.operations import Average, ReduceOp
from legato.torch.compat.process_sets import ProcessSet, global_process_set, operations_of
from legato.torch.compression import Compression, Compressor


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The rows of all ranks' tensors, in rank order."""
    (gathered,) = grouped_allgather([tensor], name, process_set)
    return gathered


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    factor = 1 / operations_of(process_set).size
    return collectives.grouped_allgather(_weighted(tensors, factor), name, process_set)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor on every rank."""
    (source,) = _weighted([tensor], 1 / operations_of(process_set).size)
    return collectives.broadcast(source, root_rank, name, process_set)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's share of the rows of the reduction."""
    (share,) = grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)
    return share


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    inputs = _weighted(tensors, float(operations_of(process_set).size))
    return collectives.grouped_reducescatter(
        inputs, name, compression, op, process_set, prescale_factor, postscale_factor
    )


class SparseWork:
    """A sparse sum under way; Horovod's users call it to get the result."""

    def __init__(self, started: Work[torch.Tensor]) -> None:
        self._started = started

    def poll(self) -> bool:
        return self._started.poll()

    def wait(self) -> torch.Tensor:
        return self._started.wait()

    __call__ = wait


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> SparseWork:
    """The average or sum of sparse tensors."""
    return SparseWork(collectives.sparse_allreduce_async(tensor, name, op, process_set))


def _weighted(tensors: Sequence[torch.Tensor], factor: float) -> list[torch.Tensor]:
    return [weighted(each, factor) if each.requires_grad else each for each in tensors]
