"""Clocks that go differently on every rank are brought together within the error that is said."""

import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from legato.observe.clock import NUM_ROUNDS, Alignment, align
from legato.testing.ranks import run_ranks


class Table:
    """Where ranks that are threads put their rows."""

    def __init__(self, size: int) -> None:
        self.rows: list[Any] = [None] * size
        self.full = threading.Barrier(size)
        self.read = threading.Barrier(size)


class Seat:
    def __init__(self, table: Table, rank: int) -> None:
        self._table = table
        self.rank = rank
        self.size = len(table.rows)

    def allgather(self, name: str, value: npt.NDArray[np.generic], /) -> npt.NDArray[np.generic]:
        assert name == "legato/clock"
        self._table.rows[self.rank] = value
        self._table.full.wait(10)
        everything = np.concatenate(self._table.rows)
        self._table.read.wait(10)
        return everything


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -0.25])
def test_the_truth_is_within_the_error(ahead_s: float) -> None:
    ahead_ns = [0, round(ahead_s * 1e9), -round(ahead_s * 1e9)]
    table = Table(3)

    def measure(rank: int) -> Alignment:
        return align(Seat(table, rank), lambda: time.monotonic_ns() + ahead_ns[rank])

    measured = run_ranks(3, measure)
    assert measured[0] == (0, 0)
    for rank in (1, 2):
        assert abs(measured[rank].ahead_ns - ahead_ns[rank]) <= measured[rank].error_ns
        assert measured[rank].error_ns < 1_000_000_000


def test_a_slow_round_does_not_spoil_a_fast_one() -> None:
    """Rank 0 hears at 5, then at 12; this rank, whose clock is 100 ahead, sends at 104 and hears at 106."""

    class Played:
        rank, size = 1, 2

        def __init__(self) -> None:
            self.rounds = iter([(4, 0), (8, 5), *[(0, 1_000_000)] * NUM_ROUNDS])

        def allgather(self, name: str, value: npt.NDArray[np.generic], /) -> npt.NDArray[np.generic]:
            del name
            return np.concatenate([np.array([next(self.rounds)], np.int64), value])

    times = iter([104, 106, 110, 112, *range(100_000, 200_000, 1000)])
    assert align(Played(), lambda: next(times)) == Alignment((99 + 102) // 2, 2)
