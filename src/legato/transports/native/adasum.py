"""Adasum: gradients added where they differ, averaged where they agree (Maleki et al., MLSys 2021).

Two vectors become  (1 − a·b / 2a·a) a + (1 − a·b / 2b·b) b: their sum where they are orthogonal, their average where
they are the same. Ranks combine in pairs, then pairs of pairs, and so on. No rank needs a whole vector for that:

    distance 1      0 ⇄ 1      2 ⇄ 3      each keeps one half of the pair's vectors and gives the other away
    distance 2      0 ⇄ 2      1 ⇄ 3      and half of that
                    an all-gather of what each rank has come to

The products of a pair are those of whole vectors: the ranks that hold the pieces add theirs, in float64.
"""

import time

import numpy as np

from legato.transports.buffer import Array, Buffer
from legato.transports.native import uneven_rows as uneven
from legato.transports.native.channel import Channels

_TINY = 1e-8
"""A vector whose square is below this agrees with nothing, and is added."""


def adasum(group: Channels, name: str, value: Array, timeout_s: float) -> Array:
    """The combination of all ranks' vectors, of float32 or float64, the same on every rank; their number is 2ⁿ."""
    deadline_s = time.monotonic() + timeout_s
    piece, bounds = value.copy(), (0, len(value))
    distance = 1
    while distance < group.size:
        halves = _halves(bounds)
        is_upper = bool(group.rank & distance)
        kept, given = (piece[half[0] - bounds[0] : half[1] - bounds[0]] for half in _in_turn(halves, is_upper))
        came = _swap(group, f"{name}/{distance}", given, group.rank ^ distance, deadline_s)
        lower, upper = (came, kept) if is_upper else (kept, came)
        piece = _combined(lower, upper, _products(group, f"{name}/{distance}", lower, upper, distance, deadline_s))
        bounds = halves[is_upper]
        distance *= 2
    buffer = Buffer.of(np.ascontiguousarray(piece), f"tensor {name!r}")
    gathered = uneven.allgather(group, name, buffer, uneven.left_s(deadline_s))
    return _in_place(gathered, len(value), group.size)


def _halves(bounds: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    start, end = bounds
    middle = (start + end) // 2
    return (start, middle), (middle, end)


def _in_turn(
    halves: tuple[tuple[int, int], tuple[int, int]], is_upper: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    """What a rank keeps, and what it gives away."""
    return halves[::-1] if is_upper else halves


def _swap(group: Channels, name: str, given: Array, partner: int, deadline_s: float) -> Array:
    splits = [len(given) if rank == partner else 0 for rank in range(group.size)]
    buffer = Buffer.of(np.ascontiguousarray(given), f"tensor {name!r}")
    return uneven.alltoall(group, name, buffer, splits, uneven.left_s(deadline_s))[0]


def _products(group: Channels, name: str, lower: Array, upper: Array, distance: int, deadline_s: float) -> Array:
    """a·b, a·a and b·b of the two vectors whose pieces lie with this rank and its neighbours."""
    a, b = lower.astype(np.float64), upper.astype(np.float64)
    table = np.zeros((group.size, 3))
    table[group.rank] = a @ b, a @ a, b @ b
    group.push_pull(f"legato/products/{name}", table, timeout_s=uneven.left_s(deadline_s))
    first = group.rank // (2 * distance) * (2 * distance)
    total: Array = table[first : first + 2 * distance].sum(axis=0)
    return total


def _combined(lower: Array, upper: Array, products: Array) -> Array:
    both, of_lower, of_upper = products
    factors = [1.0 if square < _TINY else 1.0 - both / (2.0 * square) for square in (of_lower, of_upper)]
    combined: Array = (factors[0] * lower + factors[1] * upper).astype(lower.dtype)
    return combined


def _in_place(gathered: Array, length: int, size: int) -> Array:
    """Pieces in the order of ranks, put where they belong."""
    result = np.empty(length, gathered.dtype)
    position = 0
    for rank in range(size):
        start, end = _piece_of(rank, length, size)
        result[start:end] = gathered[position : position + end - start]
        position += end - start
    return result


def _piece_of(rank: int, length: int, size: int) -> tuple[int, int]:
    bounds, distance = (0, length), 1
    while distance < size:
        bounds = _halves(bounds)[bool(rank & distance)]
        distance *= 2
    return bounds
