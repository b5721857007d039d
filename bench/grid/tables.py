"""Rows as tables, for the screen and for pages. Scaled cells say so in every one of them."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from bench.grid.compare import Verdict
from bench.grid.lineup import ALONE, system
from bench.grid.row import Row


def scaling(row: Row) -> str:
    """How a cell was scaled: in bytes and bandwidth, in bytes and computation; nothing where it was not."""
    marks = [f"÷ {row.scale:.3g}"] if row.scale > 1 else []
    if row.shorten > 1:
        marks.append(f"shortened ÷ {row.shorten:.3g}")
    elif row.shorten < 1:
        marks.append(f"lengthened × {1 / row.shorten:.3g}")
    return ", ".join(marks)


def place(row: Row) -> str:
    cell = row.of
    servers = f" + {cell.servers}" if cell.servers else ""
    return f"{cell.model}, {cell.hosts}{servers} × {cell.gbps:g} Gbit/s"


def by_cell(rows: Iterable[Row]) -> list[dict[str, Row]]:
    """The rows of each cell by system."""
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(str(sorted(row.cell.items(), key=str)), {})[row.system] = row
    return list(cells.values())


def summary(rows: Iterable[Row]) -> str:
    """A cell in a line."""
    return ", ".join(f"{row.system} {row.ratio:.3f}" for row in rows if row.system != ALONE) + " × T*"


def of_cell(rows: Sequence[Row]) -> Table:
    """Everything that was measured in a cell, for the screen."""
    first = rows[0]
    mark = f" (scaled: {scaling(first)})" if scaling(first) else ""
    table = Table(
        title=f"{place(first)}{mark}",
        caption=f"{first.num_bytes / 1e6:.3g} MB, computation {first.alone_s * 1e3:.1f} ms, "
        f"T* {first.bound_s * 1e3:.1f} ms, goodput {first.goodput_gbps:.3f} Gbit/s "
        f"(between all hosts at once {first.all_to_all_gbps:.3f})",
    )
    for name in ("system", "sums"):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "±", "/ T*", "cpu ms", "peak MB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("chose")
    for row in rows:
        table.add_row(
            row.system,
            "" if row.system == ALONE else system(row.system).sums,
            f"{row.step_s * 1e3:.1f}",
            f"{row.spread:.1%}",
            f"{row.ratio:.3f}",
            f"{row.cpu_s * 1e3:.0f}",
            f"{row.peak_bytes / 1e6:.0f}",
            row.chosen,
        )
    return table


def comparison(verdicts: Iterable[Verdict]) -> Table:
    """What has changed, a line for each system in each cell."""
    table = Table("cell", "system", title="iteration over T*, before and after")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for verdict in verdicts:
        before, after = verdict.before, verdict.after
        mark = f" ({scaling(after)})" if scaling(after) else ""
        if after.system != ALONE:
            table.add_row(
                place(after) + mark,
                after.system,
                f"{before.ratio:.3f} ± {before.spread:.1%}",
                f"{after.ratio:.3f} ± {after.spread:.1%}",
                f"{verdict.change:+.1%}",
                verdict.words,
            )
    return table


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [list(header), ["---"] * len(header), *map(list, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
