"""Sending state and objects to every rank, in Horovod's interface. Nothing is pickled: see `legato.torch.sync.tree`."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from legato.errors import InputError
from legato.torch import api
from legato.torch.compat.operations import Operations, operations
from legato.torch.scheduling.agreement import agree_on_tensors
from legato.torch.sync import tree
from legato.torch.sync.broadcast import broadcast_optimizer, broadcast_tensors

Parameters = Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]]


def broadcast_parameters(params: Parameters, root_rank: int = 0) -> None:
    """Overwrite the tensors of a state_dict, or of named_parameters, with the root's."""
    items = params.items() if isinstance(params, Mapping) else params
    tensors = []
    for name, value in items:
        if isinstance(value, torch.Tensor):
            tensors.append((name, value))
        elif value is not None:
            raise InputError(
                f"params: {name!r} is a {type(value).__name__}; accepted are names with tensors, or a state_dict"
            )
    job = api.current()
    if job.size > 1:
        agree_on_tensors(job.group, job.name("model"), tensors)
        with torch.no_grad():
            broadcast_tensors(job.group, job.name("parameters"), [tensor for _, tensor in tensors], root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, model: torch.nn.Module | None = None
) -> None:
    """Make the optimizer's state and hyper-parameters those of the root."""
    del model  # Horovod steps it to create state that is not there yet; here the state travels whole
    job = api.current()
    if job.size > 1:
        broadcast_optimizer(job.group, job.name("optimizer state"), optimizer, root_rank)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object: plain values, lists, tuples, dicts, tensors and arrays, and what these hold."""
    collectives = operations()
    if collectives.size == 1:
        return obj
    content = _packed(obj) if collectives.rank == root_rank else torch.empty(0, dtype=torch.uint8)
    length = collectives.broadcast(torch.tensor([content.numel()]), root_rank, _of(name, "length")).wait()
    if collectives.rank != root_rank:
        content = torch.empty(int(length), dtype=torch.uint8)
    return _unpacked(collectives.broadcast(content, root_rank, _of(name, "content")).wait(), root_rank)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, in rank order; of what they may consist, see `broadcast_object`."""
    collectives: Operations = operations()
    if collectives.size == 1:
        return [obj]
    content = _packed(obj)
    lengths = collectives.allgather(torch.tensor([content.numel()]), _of(name, "length")).wait()
    everything = collectives.allgather(content, _of(name, "content")).wait()
    return [_unpacked(piece, rank) for rank, piece in enumerate(everything.split(lengths.tolist()))]


def _packed(obj: Any) -> torch.Tensor:
    """An object's bytes; of one that cannot travel, why: then every rank raises the same."""
    try:
        data = tree.dump({"object": obj})
    except InputError as error:
        data = tree.dump({"error": str(error)})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(content: torch.Tensor, rank: int) -> Any:
    parcel = tree.load(content.numpy().tobytes())
    if "error" in parcel:
        raise InputError(f"the object of rank {rank}: {parcel['error']}")
    return parcel["object"]


def _of(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"
