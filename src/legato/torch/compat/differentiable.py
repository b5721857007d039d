"""Collectives that gradients flow through.

Every rank computes a loss of its own, and gradients are those of the sum of all ranks' losses: what a rank puts in
affects the losses of the others, so each backward pass is a collective too, and all ranks must run it. Horovod has
factors of its own for some of them: `Weighted`.
"""

from typing import Any

import torch
from torch.autograd import Function

from legato.errors import InputError
from legato.torch.compat.handles import Together
from legato.torch.compat.operations import Average, Operations, Reduction, Sum


def apply(function: type[Function], operations: Operations, name: str | None, *arguments: Any) -> Any:
    """What one of the functions here gives, with the way back for gradients."""
    return function.apply(operations, name, *arguments)


def names_in_group(name: str | None, num: int) -> list[str | None]:
    """Of the tensors that travel under one name."""
    return [name if name is None or num == 1 else f"{name}.{place}" for place in range(num)]


def _backward_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.backward"


def _linear(reduction: Reduction) -> Reduction:
    """The same reduction, when its gradient is itself."""
    if reduction.op not in (Average, Sum):
        raise InputError(f"op {reduction.op!s} has no gradient here; Average and Sum do")
    return reduction


def weighted(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor, with gradients that come back multiplied."""
    same: torch.Tensor = Weighted.apply(factor, tensor)  # type: ignore[no-untyped-call]
    return same


class Weighted(Function):
    """y = x, but a gradient comes back multiplied."""

    @staticmethod
    def forward(ctx: Any, factor: float, tensor: torch.Tensor) -> Any:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient * ctx.factor


class AllReduce(Function):
    """y = Σ x: a sum sends every rank the sum of the gradients, an average their average."""

    @staticmethod
    def forward(ctx: Any, operations: Operations, name: str | None, reduction: Reduction, *tensors: Any) -> Any:
        ctx.operations, ctx.name, ctx.reduction = operations, name, reduction
        names = names_in_group(name, len(tensors))
        started = [operations.allreduce(tensor, each, reduction) for tensor, each in zip(tensors, names, strict=True)]
        return tuple(Together(started).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduction = _linear(ctx.reduction)
        reduced = apply(AllReduce, ctx.operations, _backward_name(ctx.name), reduction, *gradients)
        return None, None, None, *reduced


class AllGather(Function):
    """y = the rows of all: each rank's rows get the sum of what everybody has for them."""

    @staticmethod
    def forward(ctx: Any, operations: Operations, name: str | None, *tensors: Any) -> Any:
        ctx.operations, ctx.name = operations, name
        ctx.num_rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        names = names_in_group(name, len(tensors))
        started = [operations.allgather(tensor, each) for tensor, each in zip(tensors, names, strict=True)]
        return tuple(Together(started).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        operations, name = ctx.operations, _backward_name(ctx.name)
        num_rows = operations.allgather(torch.tensor([ctx.num_rows]), name).wait()
        starts = num_rows[: operations.rank].sum(0).tolist()
        summed = apply(AllReduce, operations, name, Reduction(op=Sum), *gradients)
        mine = zip(summed, starts, ctx.num_rows, strict=True)
        return None, None, *(each[start : start + num] for each, start, num in mine)


class Broadcast(Function):
    """y = the root's x: the root gets the sum of everybody's gradients, the others none."""

    @staticmethod
    def forward(ctx: Any, operations: Operations, name: str | None, root: int, tensor: torch.Tensor) -> Any:
        ctx.operations, ctx.name, ctx.root = operations, name, root
        return operations.broadcast(tensor, root, name).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        name, operations = _backward_name(ctx.name), ctx.operations
        summed = operations.allreduce(gradient, name, Reduction(op=Sum)).wait()
        is_root = operations.rank == operations.place_of(ctx.root)
        return None, None, None, summed if is_root else torch.zeros_like(summed)


class AllToAll(Function):
    """y = the rows from everybody: their gradients go back the way they came."""

    @staticmethod
    def forward(ctx: Any, operations: Operations, name: str | None, splits: Any, tensor: torch.Tensor) -> Any:
        ctx.operations, ctx.name = operations, name
        output, ctx.received = operations.alltoall(tensor, splits, name).wait()
        received = ctx.received.clone()
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        name, splits = _backward_name(ctx.name), ctx.received.tolist()
        returned, _received = ctx.operations.alltoall(gradient, splits, name).wait()
        return None, None, None, returned


class ReduceScatter(Function):
    """y = this rank's rows of Σ x: what each rank has for its rows goes to everybody."""

    @staticmethod
    def forward(ctx: Any, operations: Operations, name: str | None, reduction: Reduction, *tensors: Any) -> Any:
        ctx.operations, ctx.name, ctx.reduction = operations, name, reduction
        names = names_in_group(name, len(tensors))
        named = zip(tensors, names, strict=True)
        return tuple(Together([operations.reducescatter(tensor, each, reduction) for tensor, each in named]).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduction = _linear(ctx.reduction)
        gathered = apply(AllGather, ctx.operations, _backward_name(ctx.name), *gradients)
        factor = reduction.prescale_factor * reduction.postscale_factor
        factor = factor / ctx.operations.size if reduction.op is Average else factor
        return None, None, None, *(each * factor for each in gathered)
