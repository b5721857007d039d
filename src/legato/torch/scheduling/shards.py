"""Shards: a model that torch has spread over the ranks of a host (`fully_shard`), averaged across hosts.

    host 0    rank 0: shard 0    rank 1: shard 1    FSDP sums gradients among the ranks of a host, and gathers weights
    host 1    rank 2: shard 0    rank 3: shard 1    there before they are used
                      │                  │
                 one group          another one     legato averages each shard over the hosts

FSDP works on groups of parameters: those of the module that `fully_shard` was given, without those of modules below it
that it was given, too. When a group has been through the backward pass, each rank has its shards of the gradients, and
FSDP calls the hooks that wait for gradients. Before a module with a group runs, FSDP's own pre-hook gathers the group;
ours was attached later, so it comes first, and applies what the whole group owes.

What ranks of a host do together, in FSDP or an optimizer, is matched by its order. So nothing here may depend on what
has arrived where: updates come in the order of the forward pass alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from legato.errors import InputError, MismatchError
from legato.exchange.measure import Measure, total
from legato.job import Job
from legato.torch.scheduling.modules import fsdp_state, parameters_of, trained
from legato.torch.sync.replicas import replicas_of
from legato.torch.sync.synchronizer import is_shard
from legato.transports.c10d.collectives import all_gather
from legato.transports.native.group import NativeGroup


def shard_mesh(model: nn.Module, optimizer: torch.optim.Optimizer) -> DeviceMesh | None:
    """The ranks over which torch has spread what an optimizer trains; None where every rank has all of it.

    An InputError where torch does more to a parameter than `fully_shard` does over the ranks of one host.
    """
    mesh = mesh_of(parameter for group in optimizer.param_groups for parameter in group["params"])
    if mesh is None:
        return None
    for module in model.modules():
        if fsdp_state(module) is not None:
            module.reshard()  # type: ignore[operator]  # a forward pass without a backward pass leaves some of it whole
    named = [(name, parameter) for _, name, parameter in trained(model, optimizer)]
    managed = {parameter for module in model.modules() for parameter in parameters_of(fsdp_state(module))}
    for name, parameter in named:
        if (reason := _refusal(parameter, mesh, is_managed=parameter in managed)) is not None:
            raise InputError(f"parameter {name!r} {reason}")
    return mesh


def _refusal(parameter: Any, mesh: DeviceMesh, *, is_managed: bool) -> str | None:
    """Why a parameter's gradient is not simply a shard that other hosts have, too."""
    if not is_shard(parameter):
        return "is whole on every rank, and others are shards; call fully_shard on the whole model, too"
    if parameter.device_mesh.ndim > 1:
        return (
            f"is spread over a mesh of {parameter.device_mesh.ndim} dimensions, so torch averages it between hosts "
            "itself, or splits it (tensor parallelism); give fully_shard the mesh of one host, of one dimension, and "
            "legato averages between hosts"
        )
    if not is_managed:
        return "is a DTensor, but not one of fully_shard's (tensor parallelism?); accepted are those of fully_shard"
    if parameter.device_mesh != mesh:
        return "is spread over other ranks than the parameters before it; accepted is one mesh for the whole model"
    if parameter.device.type != mesh.device_type:
        return f"is kept on {parameter.device} and used on {mesh.device_type}; accepted is a model without offloading"
    return None


def mesh_of(tensors: Iterable[torch.Tensor]) -> DeviceMesh | None:
    """That of the first shard among them."""
    return next((tensor.device_mesh for tensor in tensors if is_shard(tensor)), None)  # type: ignore[attr-defined]


# ---- the ranks with the same shard ----


def replicas(job: Job, mesh: DeviceMesh) -> NativeGroup | None:
    """The group in which this rank's shards are averaged; None where no other rank has them."""
    meshes = _meshes(job, mesh)
    return None if len(meshes) == 1 else replicas_of(job, meshes).group


def _meshes(job: Job, mesh: DeviceMesh) -> list[tuple[int, ...]]:
    """The meshes of all ranks, each with its ranks in the order of their shards."""
    if (dist.get_rank(), dist.get_world_size()) != (job.rank, job.size):
        raise InputError(
            f"rank {job.rank} of {job.size} is rank {dist.get_rank()} of {dist.get_world_size()} in torch.distributed; "
            "a sharded model needs the same ranks in both"
        )
    mine = np.full((1, job.size), job.size, np.int64)
    mine[0, mesh.mesh.flatten().numpy()] = np.arange(mesh.size())
    said = job.group.allgather(job.name("meshes"), mine)
    by_rank = [tuple(int(rank) for rank in np.argsort(row, kind="stable")[: (row < job.size).sum()]) for row in said]
    for rank, ranks in enumerate(by_rank):
        if any(by_rank[other] != ranks for other in ranks) or len(ranks) != len(by_rank[0]):
            raise MismatchError(
                f"rank 0 shards the model over ranks {by_rank[0]}, rank {rank} over {ranks}; every rank must be in one "
                "mesh, and all meshes must have as many ranks",
                rank=rank,
            )
    return sorted(set(by_rank))


# ---- among the ranks of a mesh ----


def gather(mesh: DeviceMesh, values: Sequence[float]) -> list[list[float]]:
    """What each rank of a mesh says, in their order. All of them call it, and between the same things."""
    mine = torch.tensor(values, dtype=torch.float64, device=mesh.device_type)
    everybody = mine.new_empty(mesh.size() * len(values))
    all_gather(everybody, mine, mesh.get_group())
    said: list[list[float]] = everybody.view(mesh.size(), len(values)).tolist()
    return said


def over_shards(mesh: DeviceMesh | None, measures: Sequence[Measure]) -> list[Measure]:
    """Measures of tensors, from those of this rank's shards. The same bits on all ranks."""
    if mesh is None:
        return list(measures)
    said = gather(mesh, [value for measure in measures for value in measure])
    return [total(Measure(*row[at : at + 2]) for row in said) for at in range(0, 2 * len(measures), 2)]
