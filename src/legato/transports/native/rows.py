"""Sparse rows: a few rows of a large table, (index, value), summed by whoever serves them.

The rows of a table belong to the ranks in equal ranges. In the life of one sum

    every rank tells how many rows it has for each range                                        a small sum
    every rank sends each range's rows to its owner, who adds up those of the same index        an all-to-all
    every owner sends the sums to all                                                           an all-gather

What travels is filled up to one of a few sizes, so that tensors are agreed on a few times and not in every step. Where
the whole table would be fewer bytes, it travels instead, with a column that counts who has touched a row.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from legato.errors import InputError, MismatchError
from legato.transports.buffer import Array, Buffer
from legato.transports.native import uneven_rows as uneven
from legato.transports.native.channel import Channels

Indices = npt.NDArray[np.int64]
_INDEX_BYTES = 8
_NOTHING = -1
"""The index of a row that only fills up."""
DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a table."""

    indices: Indices
    """Which rows these are: each once, ascending."""
    values: Array
    """Their values, a row each."""

    @classmethod
    def coalesced(cls, indices: Indices, values: Array) -> "Rows":
        """Rows in any order, those of the same index added up in the order in which they come."""
        order = np.argsort(indices, kind="stable")
        found, starts = np.unique(indices[order], return_index=True)
        return cls(found, np.add.reduceat(values[order], starts, axis=0) if len(found) else values[:0])


def push_pull(
    group: Channels, name: str, rows: Rows | None, table: tuple[int, ...], dtype: str, timeout_s: float
) -> Rows | None:
    """The sum of all ranks' rows of a table of this shape; None where no rank has any to give, which None says here."""
    if dtype not in DTYPES:
        raise InputError(f"tensor {name!r}: rows are {dtype}; accepted are {', '.join(DTYPES)}")
    deadline_s = time.monotonic() + timeout_s
    width = math.prod(table[1:])
    mine = Rows(np.empty(0, np.int64), np.empty((0, width), dtype)) if rows is None else _flat(rows, width, dtype)
    counts = _agree(group, name, mine, table, present=rows is not None, timeout_s=timeout_s)
    if counts is None:
        return None
    item_bytes = np.dtype(dtype).itemsize
    # What the busiest rank gives and what everybody gets; of the table, all of it both ways.
    sparse_bytes = (counts.sum(axis=1).max() + counts.sum()) * (_INDEX_BYTES + width * item_bytes)
    dense_bytes = 2 * table[0] * (width + 1) * item_bytes
    if sparse_bytes >= dense_bytes:
        result = _dense(group, name, mine, table[0], deadline_s)
    else:
        result = _sparse(group, name, mine, counts, deadline_s)
    return Rows(result.indices, result.values.reshape(-1, *table[1:]))


def _flat(rows: Rows, width: int, dtype: str) -> Rows:
    values = np.ascontiguousarray(rows.values, dtype).reshape(len(rows.indices), width)
    return Rows.coalesced(np.ascontiguousarray(rows.indices, np.int64), values)


def _agree(
    group: Channels, name: str, mine: Rows, table: tuple[int, ...], *, present: bool, timeout_s: float
) -> Indices | None:
    """How many rows each rank has for each owner. Every rank hears of a table or an index that is wrong anywhere."""
    num_rows = table[0]
    wrong = mine.indices[(mine.indices < 0) | (mine.indices >= num_rows)]
    width = mine.values.shape[1]
    own = np.zeros(5 + group.size, np.int64)
    own[:5] = present, num_rows, width, len(wrong), wrong[0] if len(wrong) else 0
    if not len(wrong):
        own[5:] = np.diff(np.searchsorted(mine.indices, _bounds(num_rows, group.size)))
    said = uneven.exchange(group, f"rows/{name}", own.tolist(), time.monotonic() + timeout_s)
    for rank, (_, height, others, num_wrong, index) in enumerate(said[:, :5].tolist()):
        if (height, others) != tuple(said[0, 1:3]):
            words = f"rank 0 has a table of {said[0, 1]} × {said[0, 2]}, rank {rank} of {height} × {others}"
            raise MismatchError(f"tensor {name!r}: {words}", rank=rank, tensor=name)
        if num_wrong:
            raise InputError(f"tensor {name!r}: rank {rank} has row index {index}; accepted is 0 to {num_rows - 1}")
    counts: Indices = said[:, 5:]
    return counts if said[:, 0].any() else None


def _bounds(num_rows: int, size: int) -> Indices:
    """Where each rank's range begins, and the end."""
    return np.cumsum([0, *uneven.even_rows(num_rows, size)])


def _sparse(group: Channels, name: str, mine: Rows, counts: Indices, deadline_s: float) -> Rows:
    size = group.size
    capacity = _capacity(int(counts.max()))
    outgoing = _packed(mine)
    starts = np.concatenate([[0], np.cumsum(counts[group.rank])])
    sent = np.concatenate([_filled(outgoing[starts[owner] : starts[owner + 1]], capacity) for owner in range(size)])
    buffer = Buffer.of(sent, f"tensor {name!r}")
    received, _ = uneven.alltoall(group, f"{name}/{capacity}", buffer, [capacity] * size, uneven.left_s(deadline_s))
    served = Rows.coalesced(*_unpacked(received, mine))
    most = int(uneven.exchange(group, f"sums/{name}", [len(served.indices)], deadline_s).max())
    sums = _filled(_packed(served), _capacity(most))
    buffer = Buffer.of(sums, f"tensor {name!r}")
    gathered = uneven.allgather(group, f"{name}/{len(sums)}", buffer, uneven.left_s(deadline_s))
    return Rows(*_unpacked(gathered, mine))


def _dense(group: Channels, name: str, mine: Rows, num_rows: int, deadline_s: float) -> Rows:
    whole = np.zeros((num_rows, mine.values.shape[1] + 1), mine.values.dtype)
    whole[mine.indices, :-1] = mine.values
    whole[mine.indices, -1] = 1
    group.push_pull(f"{name}/dense", whole, timeout_s=uneven.left_s(deadline_s))
    touched = np.flatnonzero(whole[:, -1])
    return Rows(touched, whole[touched, :-1])


def _capacity(count: int) -> int:
    """The next of a few sizes, at most a quarter larger."""
    grain = 1 << max((count - 1).bit_length() - 3, 0) if count > 1 else 1
    return max(-(-count // grain) * grain, 1)


def _packed(rows: Rows) -> Array:
    """Each row as the bytes of its index and its values."""
    values = np.ascontiguousarray(rows.values).view(np.uint8)
    return np.concatenate([rows.indices.view(np.uint8).reshape(-1, _INDEX_BYTES), values], axis=1)


def _filled(packed: Array, capacity: int) -> Array:
    filled = np.zeros((capacity, packed.shape[1]), np.uint8)
    filled[:, :_INDEX_BYTES] = np.array([_NOTHING]).view(np.uint8)
    filled[: len(packed)] = packed
    return filled


def _unpacked(packed: Array, like: Rows) -> tuple[Indices, Array]:
    """The rows that were packed, without those that only filled up."""
    indices = np.ascontiguousarray(packed[:, :_INDEX_BYTES]).view(np.int64).ravel()
    kept = indices != _NOTHING
    values = np.ascontiguousarray(packed[kept, _INDEX_BYTES:]).view(like.values.dtype)
    return indices[kept], values.reshape(-1, like.values.shape[1])
