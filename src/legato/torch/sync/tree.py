"""Objects as trees of plain values and tensors, so that they can travel without pickle.

What arrives from a socket is data, never code: plain values as JSON, tensors as bytes of a dtype and shape.
"""

import json
from typing import Any

import numpy as np
import torch

from legato.errors import InputError

_PLAIN = (bool, int, float, str, type(None))
_DTYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


def dump(value: Any) -> bytes:
    """One stretch of bytes: the length of the outline, the outline, then the tensors' memory one after another."""
    tensors: list[torch.Tensor] = []
    outline = json.dumps(_outline(value, tensors)).encode()
    pieces = [len(outline).to_bytes(8, "little"), outline]
    pieces += [_bytes_of(tensor) for tensor in tensors]
    return b"".join(pieces)


def num_bytes(value: Any) -> int:
    """What `dump` makes of it; an InputError where it cannot travel."""
    tensors: list[torch.Tensor] = []
    outline = json.dumps(_outline(value, tensors)).encode()
    return 8 + len(outline) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def load(data: bytes | memoryview) -> Any:
    """What `dump` was given, whatever comes behind it."""
    view = memoryview(data)
    end = 8 + int.from_bytes(view[:8], "little")
    value, _ = _rebuild(json.loads(bytes(view[8:end])), view[end:])
    return value


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return {"tensor": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, np.ndarray | np.generic):
        tensors.append(torch.from_numpy(np.ascontiguousarray(value)))
        return {"array": str(tensors[-1].dtype), "shape": list(value.shape)}
    if isinstance(value, _PLAIN):
        return {"value": value}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_outline(each, tensors) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_outline(key, tensors), _outline(each, tensors)] for key, each in value.items()]}
    raise InputError(
        f"a {type(value).__name__} cannot travel: accepted are plain values, lists, tuples, dicts, tensors and arrays"
    )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _rebuild(outline: Any, rest: memoryview) -> tuple[Any, memoryview]:
    """The value of an outline, and the bytes that belong to what comes after it."""
    if "value" in outline:
        return outline["value"], rest
    if "tensor" in outline or "array" in outline:
        return _rebuild_tensor(outline, rest)
    if "dict" in outline:
        pairs: dict[Any, Any] = {}
        for key_outline, value_outline in outline["dict"]:
            key, rest = _rebuild(key_outline, rest)
            pairs[key], rest = _rebuild(value_outline, rest)
        return pairs, rest
    values = []
    for each in outline.get("list", outline.get("tuple")):
        value, rest = _rebuild(each, rest)
        values.append(value)
    return (values if "list" in outline else tuple(values)), rest


def _rebuild_tensor(outline: Any, rest: memoryview) -> tuple[Any, memoryview]:
    tensor = torch.empty(outline["shape"], dtype=_DTYPES[outline.get("tensor", outline.get("array"))])
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes:
        tensor.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(rest[:num_bytes]), dtype=torch.uint8))
    return (tensor if "tensor" in outline else tensor.numpy()), rest[num_bytes:]
