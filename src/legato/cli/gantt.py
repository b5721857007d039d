"""Gantt charts in a terminal, with rich's colours."""

from collections.abc import Iterator

from rich.text import Text

from legato.observe.report.intervals import Interval
from legato.observe.report.recording import Rank
from legato.observe.report.terminal import NETWORK, WORKS, rows

GUTTER = 9
"""Columns for the names of rows."""
_LABELS = {"forward": "forward", "backward": "backward", "update": "update", "wait": "waits for the network"}


def chart(rank: Rank, window: Interval, columns: int) -> Iterator[Text]:
    """What a rank did in a window of time: a line for each row."""
    for row in rows(rank, window, columns):
        yield Text.assemble(f"{row.label:<{GUTTER}}", *row.cells)


def legend() -> Text:
    """What the glyphs mean."""
    line = Text(" " * GUTTER)
    for work, (glyph, style) in WORKS.items():
        line.append(glyph * 2, style=style).append(f" {_LABELS[work]}   ")
    return line.append(NETWORK[0] * 2, style=NETWORK[1]).append(" on the network")
