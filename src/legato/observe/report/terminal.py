"""Gantt charts for a terminal: rows of cells, each a glyph with a style as rich names them.

    compute  ░░░░░░▒▒▓▓▓▓▓▓▓▓██████████
    network  ▄▄▄▄▄▄▄▄▄▄▄▄▄▄     ▄▄▄▄▄▄▄

Glyphs differ too, so that the chart can be read without colours.
"""

from collections.abc import Iterable
from typing import NamedTuple

from legato.observe.notes import Work
from legato.observe.report.intervals import Interval
from legato.observe.report.recording import Rank

WORKS: dict[Work, tuple[str, str]] = {
    "forward": ("▓", "#4d97dc"),
    "backward": ("█", "#2f6cab"),
    "update": ("▒", "#59a895"),
    "wait": ("░", "#ef5b54"),
}
"""How a rank's own time is drawn."""
NETWORK = ("▄", "#e09a3a")


class Row(NamedTuple):
    """One line of the chart."""

    label: str
    cells: tuple[tuple[str, str], ...]
    """(glyph, style); a blank has no style."""


def rows(rank: Rank, window: Interval, width: int) -> list[Row]:
    """What a rank did in a window of time, on that many columns."""
    works: list[tuple[Interval, tuple[str, str]]] = [
        ((stint.begin_ns, stint.end_ns), WORKS[stint.work]) for stint in rank.stints
    ]
    flights = [((flight.begin_ns, flight.end_ns), NETWORK) for flight in rank.flights]
    return [Row("compute", _cells(works, window, width)), Row("network", _cells(flights, window, width))]


def _cells(
    boxes: Iterable[tuple[Interval, tuple[str, str]]], window: Interval, width: int
) -> tuple[tuple[str, str], ...]:
    """In each column, what took most of its time; nothing where less than half of it is taken."""
    begin_ns, end_ns = window
    column_ns = (end_ns - begin_ns) / width
    taken: list[dict[tuple[str, str], float]] = [{} for _ in range(width)]
    for (from_ns, until_ns), look in boxes:
        first = max(int((from_ns - begin_ns) / column_ns), 0)
        last = min(int((until_ns - begin_ns) / column_ns), width - 1)
        for column in range(first, last + 1):
            left_ns = begin_ns + column * column_ns
            shared_ns = min(until_ns, left_ns + column_ns) - max(from_ns, left_ns)
            taken[column][look] = taken[column].get(look, 0.0) + max(shared_ns, 0.0)
    return tuple(_most(column, column_ns) for column in taken)


def _most(column: dict[tuple[str, str], float], column_ns: float) -> tuple[str, str]:
    if sum(column.values()) < column_ns / 2:
        return (" ", "")
    return max(column, key=column.__getitem__)
