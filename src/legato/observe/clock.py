"""Clocks of different machines, brought together by what causes what.

Every rank tells every other, several times, when it sent a word (t) and when it had heard all words of the round (r).
What was heard was sent before, so each round bounds how far a rank's clock is ahead of rank 0's from both sides:

    t_rank − r_0  ≤  ahead  ≤  r_rank − t_0

The middle between the tightest bounds is taken, and half their distance is the error that cannot be exceeded. Clocks
drift apart by some microseconds a second; that is not corrected.
"""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

NUM_ROUNDS = 12
"""The first are slow: they make names known and buffers warm."""


class Gatherer(Protocol):
    """What gathers rows from all ranks: the native group, or a process group."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def allgather(self, name: str, value: npt.NDArray[np.generic], /) -> npt.NDArray[np.generic]:
        """The rows of all ranks, one after another; ranks may have different numbers of them."""


class Alignment(NamedTuple):
    """How far this rank's clock is ahead of rank 0's."""

    ahead_ns: int
    error_ns: int
    """At most so much more or less, when it was measured."""


def align(group: Gatherer, clock_ns: Callable[[], int] = time.monotonic_ns) -> Alignment:
    """Measure this rank's clock against rank 0's; every rank calls it."""
    lowest, highest = -(2**62), 2**62
    sent_ns = heard_ns = 0
    for number in range(NUM_ROUNDS + 1):
        before_ns, sent_ns = sent_ns, clock_ns()
        rows = group.allgather("legato/clock", np.array([[sent_ns, heard_ns]], np.int64))
        heard_ns = clock_ns()
        first_sent_ns, first_heard_before_ns = (int(value) for value in rows[0])
        highest = min(highest, heard_ns - first_sent_ns)
        if number:
            lowest = max(lowest, before_ns - first_heard_before_ns)
    if group.rank == 0:
        return Alignment(0, 0)
    return Alignment((lowest + highest) // 2, (highest - lowest + 1) // 2)
