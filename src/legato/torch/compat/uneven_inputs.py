"""Uneven inputs: before each forward pass all ranks say whether they still have data."""

from dataclasses import dataclass

import numpy as np

from legato.errors import LegatoError
from legato.transports.native.group import NativeGroup


class EarlyEndError(LegatoError, RuntimeError):
    """A rank has no data left while others have, and the user asked to be told."""


@dataclass(frozen=True, slots=True)
class Present:
    """The ranks that are about to compute, and what they are about to need from the others."""

    ranks: tuple[int, ...]
    syncs: bool = False
    """Gradients will be averaged."""
    refreshes: bool = False
    """Buffers are broadcast first."""

    @property
    def first(self) -> int:
        return self.ranks[0]


class Attendance:
    """One pass over uneven data: every rank reports before each forward pass, and the others' passes once it is out."""

    def __init__(self, group: NativeGroup, name: str, *, divide_by_present: bool, throw: bool) -> None:
        self._group = group
        self._name = name
        self.divide_by_present = divide_by_present
        self._throw = throw
        self.last = group.size - 1
        """Who computed last, as far as this rank has heard; of several, the highest."""

    def report(self, *, absent: bool = False, syncs: bool = False, refreshes: bool = False) -> Present:
        """Say what this rank is about to do; who else does something."""
        size = self._group.size
        table = np.zeros(size + 2, np.int32)
        if not absent:
            table[self._group.rank], table[size], table[size + 1] = 1, syncs, refreshes
        self._group.push_pull(self._name, table)
        present = Present(tuple(np.flatnonzero(table[:size]).tolist()), bool(table[size]), bool(table[size + 1]))
        self.last = max(present.ranks, default=self.last)
        if self._throw and 0 < len(present.ranks) < size:
            out = sorted(set(range(size)) - set(present.ranks))
            raise EarlyEndError(f"ranks {', '.join(map(str, out))} have no data left, others have")
        return present
