"""Everybody starts from rank 0: parameters, buffers and the optimizer's state, sent in few large pieces."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from legato.torch.sync import tree
from legato.torch.sync.native import raw
from legato.torch.sync.process_group import Group
from legato.torch.sync.synchronizer import is_shard, local_of, of_shard


def broadcast_tensors(group: Group, name: str, tensors: Iterable[torch.Tensor], root: int = 0) -> None:
    """Overwrite tensors with the root's, one flat piece per dtype and device: a model has many small tensors."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    handles = []
    for place, members in enumerate(kinds.values()):
        flat = torch.cat([member.reshape(-1) for member in members]).cpu()
        wire = flat.view(torch.uint8)
        handles.append((members, flat, group.broadcast_async(f"{name}/{place}", raw(wire), root=root)))
    for members, flat, handle in handles:
        handle.wait()
        _scatter(flat, members)


def _scatter(flat: torch.Tensor, members: Sequence[torch.Tensor]) -> None:
    position = 0
    for member in members:
        member.copy_(flat[position : position + member.numel()].view(member.shape))
        position += member.numel()


def broadcast_bytes(group: Group, name: str, data: bytes | None, root: int = 0) -> bytes:
    """The root's bytes on every rank."""
    length = np.array([0 if data is None else len(data)], np.int64)
    group.broadcast(f"{name}/length", length, root=root)
    content = np.frombuffer(data, np.uint8).copy() if group.rank == root and data else np.empty(length[0], np.uint8)
    if length[0]:
        group.broadcast(f"{name}/content", content, root=root)
    return content.tobytes()


def broadcast_module(group: Group, name: str, module: nn.Module) -> None:
    with torch.no_grad():
        broadcast_tensors(group, name, [*map(local_of, module.parameters()), *module.buffers()])


def broadcast_value(group: Group, name: str, value: Any, root: int = 0) -> Any:
    """The root's value, of plain values, containers and tensors, on every rank."""
    data = broadcast_bytes(group, name, tree.dump(value) if group.rank == root else None, root)
    return value if group.rank == root else tree.load(data)


def broadcast_optimizer(group: Group, name: str, optimizer: torch.optim.Optimizer, root: int = 0) -> None:
    """Make the optimizer's state and hyper-parameters those of the root."""
    state = broadcast_value(group, name, _with_local(optimizer.state_dict()), root)
    if group.rank != root:
        optimizer.load_state_dict(_with_shards(state, optimizer))


class Stateful(Protocol):
    """What a script trains with besides its model and optimizer: an LR scheduler, a gradient scaler, a sampler."""

    def state_dict(self) -> dict[str, Any]:
        """What it has come to."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Begin there."""


def broadcast_states(group: Group, name: str, states: Sequence[Stateful]) -> None:
    """Make the state of each object that of the root's."""
    if not states:
        return
    given = [each.state_dict() for each in states] if group.rank == 0 else None
    for each, state in zip(states, broadcast_value(group, name, given), strict=True):
        if group.rank != 0:
            each.load_state_dict(state)


_SHARD = "legato/shard"


def _with_local(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state with what is here of shards, marked: nothing else can travel."""

    def local(value: Any) -> Any:
        return {_SHARD: local_of(value)} if is_shard(value) else value

    return {**state, "state": {index: _mapped(local, each) for index, each in state["state"].items()}}


def _with_shards(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The way back, on a rank with the same shards."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def whole(parameter: torch.Tensor, value: Any) -> Any:
        is_ours = isinstance(value, dict) and _SHARD in value
        return of_shard(parameter, value[_SHARD]) if is_ours else value

    states = state["state"].items()
    return {**state, "state": {index: _mapped(partial(whole, parameters[index]), each) for index, each in states}}


def _mapped(change: Callable[[Any], Any], state: Any) -> Any:
    """What an optimizer keeps of a parameter, which is nearly always a dict."""
    return {key: change(value) for key, value in state.items()} if isinstance(state, dict) else state
