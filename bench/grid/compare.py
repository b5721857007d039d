"""Two files of rows against each other: what has become faster, what slower, and what cannot be told."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.grid.row import Row
from legato.errors import InputError

LEAST_TURNS = 3
"""Fewer turns on each side are apart by chance too often: of 3 + 3, in any order alike, one in ten."""
LEAST_CHANGE = 0.01
"""Less than this is not worth a word, however certain."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One system in one cell, by its iteration over T*: that takes out what other links or layers would explain."""

    before: Row
    after: Row

    @property
    def change(self) -> float:
        """How much longer an iteration has become."""
        return self.after.ratio / self.before.ratio - 1

    @property
    def is_slower(self) -> bool:
        return self._is_certain and self.change > 0

    @property
    def words(self) -> str:
        if min(len(self.before.turns_s), len(self.after.turns_s)) < LEAST_TURNS:
            return f"fewer than {LEAST_TURNS} turns: cannot tell"
        if not self._is_certain:
            return "within noise"
        return f"{'slower' if self.change > 0 else 'faster'} by {abs(self.change):.1%}"

    @property
    def _is_certain(self) -> bool:
        """Every turn of the one is faster than every turn of the other."""
        before, after = self.before.ratios, self.after.ratios
        apart = max(before) < min(after) or max(after) < min(before)
        return apart and abs(self.change) > LEAST_CHANGE and min(len(before), len(after)) >= LEAST_TURNS


def compare(before: Sequence[Row], after: Sequence[Row]) -> list[Verdict]:
    """What both have, in the order of the second."""
    known = {_identity(row): row for row in before}
    verdicts = [Verdict(before=known[_identity(row)], after=row) for row in after if _identity(row) in known]
    if not verdicts:
        raise InputError("compare: the two files have no system in the same cell")
    return verdicts


def _identity(row: Row) -> tuple[object, ...]:
    """Which systems ran beside it, and how often, may differ."""
    ignored = ("systems", "rounds", "steps")
    return (row.system, *(value for name, value in sorted(row.cell.items()) if name not in ignored))
