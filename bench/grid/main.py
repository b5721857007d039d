"""What `legato bench` calls: a recipe's cells one after the other, each written as soon as it is there."""

import time
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.grid import recipe
from bench.grid.cell import Cell
from bench.grid.compare import compare
from bench.grid.row import Row, append, missing, read
from bench.grid.tables import by_cell, comparison, of_cell, summary
from bench.testbed import quota
from bench.testbed.namespace import acquire_permission

ROOT = Path(__file__).resolve().parents[2]


def bench(name: str, out: Path | None, *, fresh: bool, seconds: float, console: Console) -> int:
    """Measure what is missing of a recipe, or with `fresh` everything, and show all of it.

    After so many seconds no more hosts are set up for the cells that are left.
    """
    until_s = time.monotonic() + seconds
    chosen = recipe.read(name)
    acquire_permission()
    path = out or ROOT / "build" / "bench" / f"{chosen.name}.jsonl"
    cells = chosen.cells()
    known = read(path) if path.exists() else []
    todo = cells if fresh else missing(cells, known)
    if len(todo) < len(cells):
        commits = sorted({row.environment.get("commit", "unknown") for row in known})
        console.print(
            f"{len(cells) - len(todo)} of {len(cells)} cells are in {path} already (commit {', '.join(commits)}); "
            "--fresh measures them again"
        )
    if todo:
        _measure_all(todo, path, until_s, console)
    for cell in by_cell(row for row in read(path) if row.of in cells):
        console.print(of_cell(list(cell.values())))
    console.print(f"rows: {path}")
    return 0


def show_comparison(before: Path, after: Path, console: Console) -> int:
    """1 when something has become slower beyond noise."""
    verdicts = compare(read(before), read(after))
    console.print(comparison(verdicts))
    return int(any(verdict.is_slower for verdict in verdicts))


def clean(console: Console) -> int:
    """Remove what owners that are gone left behind."""
    removed = quota.clean()
    console.print(f"removed: {', '.join(removed)}" if removed else "nothing was left behind")
    return 0


def _measure_all(cells: list[Cell], path: Path, until_s: float, console: Console) -> None:
    # Here and not above: torch takes seconds to import, and neither mistakes nor comparisons need it.
    from bench.grid.measure import measure

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, speed_estimate_period=600) as progress:
        bar = progress.add_task("", total=sum(cell.expected_s() for cell in cells))
        done: list[Cell] = []

        def hear(system: str) -> None:
            cell = cells[len(done)]
            title = f"[{len(done) + 1}/{len(cells)}] {cell}: {system}"
            progress.update(bar, description=title, advance=cell.expected_s() / cell.num_turns)

        def finish(cell: Cell, rows: list[Row]) -> None:
            append(path, rows)
            done.append(cell)
            progress.update(bar, completed=sum(each.expected_s() for each in done))
            console.print(f"[{len(done)}/{len(cells)}] {cell}: {summary(rows)}", highlight=False, markup=False)

        for _, alike in groupby(cells, key=lambda cell: (cell.hosts, cell.servers, cell.gbps)):
            if time.monotonic() > until_s:
                console.print(f"{len(cells) - len(done)} cells are left for the next run")
                break
            measure(list(alike), hear, finish)
