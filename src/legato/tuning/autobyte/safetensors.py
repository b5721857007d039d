"""Weights in the safetensors format: a length, a JSON header, raw bytes; nothing in it can run.

8 bytes    length of the header, little endian
header     {"name": {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
data       the tensors, one after the other
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from legato.errors import InputError

Weights = dict[str, npt.NDArray[np.float32]]
MAX_HEADER_BYTES = 1 << 20


def save(path: Path, weights: Weights, metadata: Mapping[str, str]) -> None:
    """Write single-precision arrays, and text about them."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, array in weights.items():
        end = begin + 4 * array.size
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in weights.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def load(path: Path) -> tuple[Weights, dict[str, str]]:
    """Read what `save`, or anybody, wrote in this format; a file that is not one is refused."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        if not 0 < length <= min(MAX_HEADER_BYTES, len(content) - 8):
            raise ValueError("the header's length")
        header = json.loads(content[8 : 8 + length])
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        return {name: _array(entry, content[8 + length :]) for name, entry in header.items()}, metadata
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path.name}: not a safetensors file of single precision ({error})") from None


def _array(entry: dict[str, Any], data: bytes) -> npt.NDArray[np.float32]:
    shape, (begin, end) = [int(size) for size in entry["shape"]], entry["data_offsets"]
    if entry["dtype"] != "F32" or not 0 <= begin <= end <= len(data) or end - begin != 4 * prod(shape):
        raise ValueError("a tensor's place")
    return np.frombuffer(data[begin:end], dtype="<f4").astype(np.float32).reshape(shape)
