"""Agreement: ranks compare their models before anything of them travels, so that a difference is named by parameter.

Names, shapes and dtypes must be the same on every rank. The order in which a parameter's elements lie in memory becomes
rank 0's, like its values: elements travel in that order (`Slot.strides`).
"""

import json
import logging
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from legato.errors import MismatchError
from legato.observe.clock import Gatherer
from legato.torch.scheduling.attachments import bare
from legato.torch.sync.synchronizer import Slot, is_shard, same_order, strides_of

_log = logging.getLogger(__name__)
_DIGEST_BYTES = 16


def agree_on_model(group: Gatherer, name: str, model: nn.Module) -> None:
    """A MismatchError on every rank where their models differ."""
    model = bare(model)
    agree_on_tensors(group, name, [*model.named_parameters(), *model.named_buffers()])


def agree_on_slots(group: Gatherer, name: str, slots: Sequence[Slot]) -> list[Slot]:
    """The slots, after a comparison of their parameters. A MismatchError on every rank where these differ."""
    agree_on_tensors(group, name, [(slot.name, slot.parameter) for slot in slots])
    return [Slot(slot.name, slot.parameter, slot.is_sparse) for slot in slots]


def agree_on_tensors(group: Gatherer, name: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """A MismatchError on every rank where these differ; `name` is for the exchange."""
    kinds = _text([[each, _words(tensor)] for each, tensor in tensors])
    orders = _text([[each, list(strides_of(tensor))] for each, tensor in tensors if _has_order(tensor)])
    digests = np.frombuffer(_digest(kinds) + _digest(orders), np.uint8).reshape(1, 2, _DIGEST_BYTES).copy()
    by_rank = group.allgather(f"{name}/digests", digests)
    same_kinds, same_orders = (by_rank == by_rank[0]).all(axis=(0, 2))
    if not same_kinds:
        _name_difference(_gather(group, f"{name}/kinds", kinds))
    if not same_orders:
        _adopt(dict(_gather(group, f"{name}/orders", orders)[0]), tensors)


def _words(tensor: torch.Tensor) -> str:
    """What must be the same on every rank, as a message says it."""
    frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
    shard = f", sharded as {tensor.placements}" if is_shard(tensor) else ""  # type: ignore[attr-defined]
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{shard}{', frozen' if frozen else ''}"


def _name_difference(by_rank: Sequence[list[tuple[str, str]]]) -> None:
    first = by_rank[0]
    for rank, theirs in enumerate(by_rank):
        if theirs == first:
            continue
        words, others = dict(first), dict(theirs)
        for each in words | others:
            if words.get(each) != others.get(each):
                raise MismatchError(
                    f"parameter {each!r} is {words.get(each, 'not there')} on rank 0 and "
                    f"{others.get(each, 'not there')} on rank {rank}; every rank must make the same model",
                    rank=rank,
                    tensor=each,
                )
        here, there = next((a, b) for (a, _), (b, _) in zip(first, theirs, strict=True) if a != b)
        raise MismatchError(
            f"where rank 0 has parameter {here!r}, rank {rank} has {there!r}; "
            "every rank must make the same model, with its parameters in the same order",
            rank=rank,
            tensor=here,
        )


@torch.no_grad()
def _adopt(orders: dict[str, list[int]], tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    for name, parameter in tensors:
        if _has_order(parameter):
            strides = tuple(orders[name])
            if not same_order(parameter.shape, strides_of(parameter), strides):
                _log.info("parameter %r lies in memory in another order than on rank 0, and takes that one", name)
                moved = torch.empty_strided(
                    parameter.shape, strides, dtype=parameter.dtype, device=parameter.device
                ).copy_(parameter)
                parameter.data = moved


def _has_order(tensor: torch.Tensor) -> bool:
    """Whether its elements may lie in memory in one order or another: not where FSDP has laid them out."""
    return isinstance(tensor, nn.Parameter) and not is_shard(tensor)


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGEST_BYTES).digest()


def _gather(group: Gatherer, name: str, text: bytes) -> list[Any]:
    """What every rank says; lines, because texts differ in length."""
    lines = group.allgather(name, np.frombuffer(text + b"\n", np.uint8).copy()).tobytes().decode().splitlines()
    return [json.loads(line) for line in lines]
