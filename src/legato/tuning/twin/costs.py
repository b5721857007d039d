"""Costs: what parts were seen to take, added up so that it can be summed and fitted.

Parts that follow each other without a pause are a row; a part by itself is a row of one:

    in flight   ├──── a ────┤
                                ├──── b ────┤
                                 ├──── c ───┼──┤
                                          ├─┼──┼─ d ─┤
    rows        ├─ 1 part ──┤   ├──── 3 parts ───────┤

A row takes what its parts keep the links, and what the last one takes beyond that, which nothing hides; between two
ends within a row, only the first. Least squares over such observations needs the sums of products of five numbers:
parts, bytes, one, bytes of the last part, and the seconds, each over what the parts would take at the row's mean pace.
So relative errors count alike, and a long row's jitter does not drown what short ones say of overhead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

from legato.core import Stage
from legato.sim.one_step import Span

OVERLAP = 0.8
"""A part is in the row of the one before if it was started before that one had gone this much of its way.

Later, and the links may have been idle. Where pushes and pulls alternate in bursts, m parts in flight start at (m+1)/2m
of the way of the one before: 0.75 for two.
"""
PIECE_PARTS = 8
"""Ends that are taken together within a row: pushes and pulls alternate on a link, so a single pause says little."""
_FEATURES = 4
_SUMS = 1 + _FEATURES + _FEATURES * _FEATURES


@dataclass(frozen=True, slots=True)
class Costs:
    """The sums, apart for parts that make a whole sum and those that make one half of it."""

    whole: tuple[float, ...] = (0.0,) * _SUMS
    half: tuple[float, ...] = (0.0,) * _SUMS

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(
            tuple(mine + theirs for mine, theirs in zip(self.whole, other.whole, strict=True)),
            tuple(mine + theirs for mine, theirs in zip(self.half, other.half, strict=True)),
        )

    def scaled(self, factor: float) -> "Costs":
        """The same with less weight."""
        return Costs(tuple(value * factor for value in self.whole), tuple(value * factor for value in self.half))

    @classmethod
    def of(cls, spans: Iterable[Span]) -> "Costs":
        """The costs of one step's parts, in the order in which they finished. What cannot be is left out."""
        sums = np.zeros((2, _SUMS))
        for row in _rows(span for span in spans if _possible(span)):
            kind = sums[int(row[-1].stage is not Stage.SYNC)]
            for features, seconds, scale_s in _observations(row):
                scaled = np.array(features) / scale_s
                kind += (1.0, *(scaled * (seconds / scale_s)), *np.outer(scaled, scaled).ravel())
        return cls(*(tuple(kind.tolist()) for kind in sums))


def _observations(row: list[Span]) -> Iterator[tuple[tuple[int, int, int, int], float, float]]:
    """(parts, bytes, one, last bytes), their seconds, and the seconds at the row's mean pace.

    The first end comes late, after the pushes of a whole window, so ends within a row are too close together on the
    whole: the row says how many seconds there are, and the ends only how pieces share them.
    """
    row_s = row[-1].finished_s - min(span.started_s for span in row)
    yield (len(row), sum(span.num_bytes for span in row), 1, row[-1].num_bytes), row_s, row_s
    between_s = row[-1].finished_s - row[0].finished_s
    if len(row) < PIECE_PARTS or not between_s > 0:
        return
    stretch = row_s * (len(row) - 1) / len(row) / between_s
    for begin in range(0, len(row) - 1, PIECE_PARTS):
        piece = row[begin + 1 : begin + 1 + PIECE_PARTS]
        seconds = (piece[-1].finished_s - row[begin].finished_s) * stretch
        yield (len(piece), sum(span.num_bytes for span in piece), 0, 0), seconds, row_s * len(piece) / len(row)


def count(sums: tuple[float, ...]) -> float:
    """How many observations the sums are of."""
    return sums[0]


def moments(sums: tuple[float, ...]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The sums as least squares wants them: products of the features, and their products with the seconds."""
    values = np.array(sums)
    return values[1 + _FEATURES :].reshape(_FEATURES, _FEATURES), values[1 : 1 + _FEATURES]


def _possible(span: Span) -> bool:
    return isfinite(span.started_s) and isfinite(span.finished_s) and span.finished_s > span.started_s


def _rows(spans: Iterable[Span]) -> Iterator[list[Span]]:
    row: list[Span] = []
    for span in spans:
        if row and span.started_s > row[-1].started_s + OVERLAP * (row[-1].finished_s - row[-1].started_s):
            yield row
            row = []
        row.append(span)
    if row:
        yield row
