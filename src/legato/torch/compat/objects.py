"""Sending state and objects to every rank, in Horovod's interface. Nothing is pickled: see `legato.torch.sync.tree`."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from legato.errors import InputError
from legato.torch.compat.process_sets import ProcessSet, global_process_set, operations_of
from legato.torch.scheduling.agreement import agree_on_tensors
from legato.torch.sync import tree
from legato.torch.sync.broadcast import broadcast_optimizer, broadcast_tensors

Parameters = Mapping[str, Any] | Iterable[tuple[str, torch.Tensor] | torch.Tensor]


def broadcast_parameters(params: Parameters, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite the tensors of a state_dict, of named_parameters or of parameters with the root's."""
    if not isinstance(params, Iterable):
        raise InputError(f"params is a {type(params).__name__}; accepted are names with tensors, or a state_dict")
    items = params.items() if isinstance(params, Mapping) else map(_named, itertools.count(), params)
    tensors = []
    for name, value in items:
        if isinstance(value, torch.Tensor):
            tensors.append((name, value))
        elif value is not None:
            raise InputError(
                f"params: {name!r} is a {type(value).__name__}; accepted are names with tensors, or a state_dict"
            )
    members = operations_of(process_set)
    root = members.place_of(root_rank)
    if members.group is not None:
        agree_on_tensors(members.group, members.new_name("model"), tensors)
        with torch.no_grad():
            each = [tensor for _, tensor in tensors]
            broadcast_tensors(members.group, members.new_name("parameters"), each, root)


def _named(place: int, given: Any) -> tuple[str, Any]:
    """A parameter with its name, or its place where it has none."""
    return given if isinstance(given, tuple) and len(given) == 2 else (f"parameter {place}", given)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Make the optimizer's state and hyper-parameters those of the root."""
    del model  # Horovod steps it to create state that is not there yet; here the state travels whole
    members = operations_of(process_set)
    root = members.place_of(root_rank)
    if members.group is not None:
        broadcast_optimizer(members.group, members.new_name("optimizer state"), optimizer, root)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object: plain values, lists, tuples, dicts, tensors and arrays, and what these hold."""
    collectives = operations_of(process_set)
    if collectives.size == 1:
        return obj
    is_root = collectives.rank == collectives.place_of(root_rank)
    content = _packed(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    length = collectives.broadcast(torch.tensor([content.numel()]), root_rank, _of(name, "length")).wait()
    if not is_root:
        content = torch.empty(int(length), dtype=torch.uint8)
    return _unpacked(collectives.broadcast(content, root_rank, _of(name, "content")).wait(), root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in rank order; of what they may consist, see `broadcast_object`."""
    collectives = operations_of(process_set)
    if collectives.size == 1:
        return [obj]
    content = _packed(obj)
    lengths = collectives.allgather(torch.tensor([content.numel()]), _of(name, "length")).wait()
    everything = collectives.allgather(content, _of(name, "content")).wait()
    pieces = zip(collectives.ranks, everything.split(lengths.tolist()), strict=True)
    return [_unpacked(piece, rank) for rank, piece in pieces]


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
