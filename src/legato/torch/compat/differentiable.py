"""Collectives that gradients flow through.

Every rank computes a loss of its own, and gradients are those of the sum of all ranks' losses: what a rank puts in
affects the losses of the others, so each backward pass is a collective too, and all ranks must run it.
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


def _backward_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.backward"


def _linear(reduction: Reduction) -> Reduction:
    """The same reduction, when its gradient is itself."""
    if reduction.op not in (Average, Sum):
        raise InputError(f"op {reduction.op!s} has no gradient here; Average and Sum do")
    return reduction


class AllReduce(Function):
    """y = Σ x: a sum sends every rank the sum of the gradients, an average their average."""

    @staticmethod
    def forward(ctx: Any, operations: Operations, name: str | None, reduction: Reduction, *tensors: Any) -> Any:
        ctx.operations, ctx.name, ctx.reduction = operations, name, reduction
        names = [name if name is None or len(tensors) == 1 else f"{name}.{place}" for place in range(len(tensors))]
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
    def forward(ctx: Any, operations: Operations, name: str | None, tensor: torch.Tensor) -> Any:
        ctx.operations, ctx.name, ctx.num_rows = operations, name, tensor.shape[0] if tensor.dim() else 0
        return operations.allgather(tensor, name).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        operations, name = ctx.operations, _backward_name(ctx.name)
        num_rows = operations.allgather(torch.tensor([ctx.num_rows]), name).wait()
        summed = operations.allreduce(gradient, name, Reduction(op=Sum)).wait()
        start = int(num_rows[: operations.rank].sum())
        return None, None, summed[start : start + ctx.num_rows]


class Broadcast(Function):
    """y = the root's x: the root gets the sum of everybody's gradients, the others none."""

    @staticmethod
    def forward(ctx: Any, operations: Operations, name: str | None, root: int, tensor: torch.Tensor) -> Any:
        ctx.operations, ctx.name, ctx.root = operations, name, root
        return operations.broadcast(tensor, root, name).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        name = _backward_name(ctx.name)
        summed = ctx.operations.allreduce(gradient, name, Reduction(op=Sum)).wait()
        return None, None, None, summed if ctx.operations.rank == ctx.root else torch.zeros_like(summed)


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
    def forward(ctx: Any, operations: Operations, name: str | None, reduction: Reduction, tensor: torch.Tensor) -> Any:
        ctx.operations, ctx.name, ctx.reduction = operations, name, reduction
        return operations.reducescatter(tensor, name, reduction).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        reduction = _linear(ctx.reduction)
        gathered = ctx.operations.allgather(gradient, _backward_name(ctx.name)).wait()
        factor = reduction.prescale_factor * reduction.postscale_factor
        return None, None, None, gathered * (factor / ctx.operations.size if reduction.op is Average else factor)
