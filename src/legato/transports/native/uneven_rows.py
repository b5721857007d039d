"""Operations whose ranks hold different numbers of rows: they first tell each other how many, then move them.

The numbers travel through the engine like any small tensor. For each combination of numbers that occurs, the rows are
a tensor of their own, agreed on once: a job that gathers the same shapes again pays for the numbers alone.
"""

import hashlib
import math
import time
from collections.abc import Sequence

import numpy as np

from legato.errors import InputError
from legato.transports.buffer import Array, Buffer, numpy_dtype
from legato.transports.declaration import ITEM_BYTES, Declaration, Operation
from legato.transports.native.channel import Channels
from legato.transports.native.handle import Handle


def even_rows(rows: int, size: int) -> tuple[int, ...]:
    """Rows for each of `size` ranks, as equal as can be: even_rows(5, 3) == (2, 2, 1)."""
    share, rest = divmod(rows, size)
    return tuple(share + (rank < rest) for rank in range(size))


def allgather(group: Channels, name: str, value: Buffer, timeout_s: float) -> Array:
    """The rows of all ranks, in rank order."""
    deadline_s = time.monotonic() + timeout_s
    rows = exchange(group, f"allgather/{name}", [value.rows(f"tensor {name!r}")], deadline_s)[:, 0].tolist()
    shape = (sum(rows), *value.shape[1:])
    row_bytes = math.prod(value.shape[1:]) * ITEM_BYTES[value.dtype]
    out = np.empty(shape, numpy_dtype(value.dtype))
    start = sum(rows[: group.rank])
    # The engine sends nobody what it wrote itself, so this rank's own rows are put in their place here.
    out[start : start + value.shape[0]] = value.array()
    if not out.nbytes:
        return out
    tensor = Declaration(
        name=f"legato/allgather/{name}/{_fingerprint(rows)}",
        shape=shape,
        dtype=value.dtype,
        operation=Operation.ALL_GATHER,
        segments=tuple(count * row_bytes for count in rows),
    )
    address = out.ctypes.data
    handle = group.channel(tensor).launch(
        source=address, destination=address, num_bytes=out.nbytes, memory=out, result=out
    )
    return handle.wait(left_s(deadline_s))


def alltoall(
    group: Channels, name: str, value: Buffer, splits: Sequence[int] | None, timeout_s: float
) -> tuple[Array, tuple[int, ...]]:
    """The rows that each rank has for this one, in rank order, and how many came from each."""
    deadline_s = time.monotonic() + timeout_s
    mine = _checked_splits(name, value.rows(f"tensor {name!r}"), splits, group.size)
    matrix = exchange(group, f"alltoall/{name}", mine, deadline_s)
    row_bytes = math.prod(value.shape[1:]) * ITEM_BYTES[value.dtype]
    received = tuple(matrix[:, group.rank].tolist())
    out = np.empty((sum(received), *value.shape[1:]), numpy_dtype(value.dtype))
    first, start = sum(mine[: group.rank]), sum(received[: group.rank])
    # The engine sends nobody what it wrote itself, so what stays on this rank is put in its place here.
    out[start : start + mine[group.rank]] = value.array()[first : first + mine[group.rank]]
    handles = [
        _send_to(group, name, value, matrix[:, reader].tolist(), reader, first=sum(mine[:reader]), out=out)
        for reader in range(group.size)
        if matrix[:, reader].any() and row_bytes
    ]
    for handle in handles:
        handle.wait(left_s(deadline_s))
    return out, received


def _send_to(
    group: Channels, name: str, value: Buffer, rows: list[int], reader: int, *, first: int, out: Array
) -> Handle[None]:
    """Gather at one rank what all have for it: here that is `rows[group.rank]` rows, from row `first` on."""
    row_bytes = math.prod(value.shape[1:]) * ITEM_BYTES[value.dtype]
    tensor = Declaration(
        name=f"legato/alltoall/{name}/{reader}/{_fingerprint(rows)}",
        shape=(sum(rows), *value.shape[1:]),
        dtype=value.dtype,
        operation=Operation.GATHER,
        root=reader,
        segments=tuple(count * row_bytes for count in rows),
    )
    is_mine = reader == group.rank
    return group.channel(tensor).launch(
        source=value.address + first * row_bytes,
        destination=out.ctypes.data if is_mine else 0,
        num_bytes=out.nbytes if is_mine else 0,
        memory=(value, out),
        result=None,
        source_segment=(sum(rows[: group.rank]) * row_bytes, rows[group.rank] * row_bytes),
    )


def exchange(group: Channels, name: str, mine: Sequence[int], deadline_s: float) -> Array:
    """Everybody's numbers, a row per rank: each adds its own to the others' zeros."""
    table = np.zeros((group.size, len(mine)), np.int64)
    table[group.rank] = mine
    group.push_pull(f"legato/rows/{name}", table, timeout_s=left_s(deadline_s))
    return table


def _checked_splits(name: str, rows: int, splits: Sequence[int] | None, size: int) -> list[int]:
    if splits is None:
        if rows % size:
            raise InputError(f"tensor {name!r}: {rows} rows are not equal shares for {size} ranks; give splits")
        return [rows // size] * size
    chosen = [int(split) for split in splits]
    if len(chosen) != size or min(chosen) < 0 or sum(chosen) != rows:
        raise InputError(
            f"tensor {name!r}: splits are {chosen}, they must be {size} numbers that add up to {rows} rows"
        )
    return chosen


def _fingerprint(rows: Sequence[int]) -> str:
    return hashlib.sha256(repr(list(rows)).encode()).hexdigest()[:16]


def left_s(deadline_s: float) -> float:
    """What is left until a deadline."""
    return max(deadline_s - time.monotonic(), 0.0)
