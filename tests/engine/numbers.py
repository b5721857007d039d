"""Arrays of every dtype whose sums are known exactly."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato._native import measure

Array = NDArray[Any]

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "int16"]
REDUCTIONS = ["sum", "average", "min", "max", "product"]

_FUNCTIONS = {
    "sum": np.add,
    "average": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}


def item_bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def encode(dtype: str, values: Array) -> Array:
    """Numbers in the memory that travels; numpy has no bfloat16, so those are the upper halves of floats."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def decode(dtype: str, array: Array) -> Array:
    if dtype != "bfloat16":
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def contributions(dtype: str, num_items: int, num_workers: int, seed: int = 0) -> list[Array]:
    """Small whole numbers, so that floating-point sums are exact in any order."""
    generator = np.random.default_rng(seed)
    return [encode(dtype, generator.integers(1, 5, num_items)) for _ in range(num_workers)]


def reduced(dtype: str, reduction: str, arrays: list[Array]) -> Array:
    """What every reader must get. Halves are added in single precision and rounded once; integers wrap."""
    wide = np.float32 if dtype in ("float16", "bfloat16") else np.dtype(dtype)
    stacked = np.stack([decode(dtype, array).astype(wide) for array in arrays])
    total = _FUNCTIONS[reduction].reduce(stacked, axis=0, dtype=wide)
    if reduction == "average":
        count = wide.type(len(arrays)) if isinstance(wide, np.dtype) else np.float32(len(arrays))
        total = total // count if np.issubdtype(wide, np.integer) else total / count
    return encode(dtype, total)


def by_parts(dtype: str, array: Array, parts: Sequence[tuple[int, ...]]) -> tuple[float, float]:
    """The measure that all ranks must hear of these numbers: those of the parts, added up in their order."""
    memory = array.view(np.uint8)
    squares, largest = 0.0, 0.0
    for offset, length, *_ in parts:
        part_squares, part_largest = measure(dtype, memory[offset : offset + length])
        squares += part_squares
        largest = float(np.maximum(largest, part_largest))
    return squares, largest
