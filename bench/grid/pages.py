"""The tables in README.md and docs/benchmark.md, from bench/results: `python -m bench.grid.pages` writes them anew.

A table stands between two comments that name it; everything else on a page is written by hand.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.grid.lineup import ALONE
from bench.grid.prediction import predicted_s
from bench.grid.row import Row, read
from bench.grid.tables import by_cell, markdown, scaling
from bench.study.settings import TITLES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmark.md")
_REGION = re.compile(r"(<!-- table (\S+): [^>]*-->\n).*?(<!-- end -->)", re.DOTALL)


def headline() -> str:
    """Iteration over T*, models against systems."""
    systems = {"ddp": "DDP/Gloo", "ddp:tuned": "DDP/Gloo, tuned buckets", "legato": "legato"}
    lines = [
        [
            f"{_title(cell)} ({scaling(cell['legato'])})",
            *(f"{cell[name].ratio:.2f}" for name in ("ddp", "ddp:tuned")),
            f"**{cell['legato'].ratio:.3f}**",
            f"{cell['ddp:tuned'].step_s / cell['legato'].step_s:.2f}×",
        ]
        for cell in by_cell(read(RESULTS / "headline.jsonl"))
    ]
    return markdown(["", *systems.values(), "gain on tuned DDP"], lines)


def grid() -> str:
    """Every cell: iteration over T*, and how much longer than tuned DDP."""
    lines = []
    for cell in by_cell(read(RESULTS / "grid.jsonl")):
        tuned = cell["ddp:tuned"]
        lines.append(
            [
                _title(cell),
                f"{tuned.of.gbps:g}",
                scaling(tuned),
                f"{tuned.num_bytes * 8e-9 * 1.5 / tuned.goodput_gbps / tuned.alone_s:.2f}",
                f"{tuned.ratio:.2f}",
                *(
                    f"{row.ratio:.2f} ({row.step_s / tuned.step_s - 1:+.0%} ± {row.spread + tuned.spread:.0%})"
                    for row in (cell["legato"], cell["c10d"])
                ),
            ]
        )
    return markdown(
        ["model", "Gbit/s", "scaled", "communication / computation", "tuned DDP", "legato (PS)", "legato (all-reduce)"],
        lines,
    )


def every_system() -> str:
    """One model by every system."""
    lines = [
        [row.system, f"{row.ratio:.2f}", f"± {row.spread:.1%}", f"{row.cpu_s * 1e3:.0f}", f"{row.peak_bytes / 1e6:.0f}"]
        for row in read(RESULTS / "systems.jsonl")
        if row.system != ALONE
    ]
    return markdown(["system", "/ T*", "", "cpu ms", "peak MB"], lines)


def measured_rows() -> list[Row]:
    """What the simulator is held against."""
    return [row for name in ("headline", "grid") for row in read(RESULTS / f"{name}.jsonl") if row.system != ALONE]


def predictions() -> list[tuple[Row, float]]:
    """Every one of them with what the simulator says of it."""
    return [(row, predicted_s(row)) for row in measured_rows()]


def simulator() -> str:
    """Predicted over measured, by system: the median of the errors and the largest."""
    errors: dict[str, list[tuple[float, Row]]] = {}
    for row, seconds in predictions():
        errors.setdefault(row.system, []).append((seconds / row.step_s - 1, row))
    lines = []
    for name, found in errors.items():
        sizes = [abs(error) for error, _ in found]
        worst, where = max(found, key=lambda entry: abs(entry[0]))
        lines.append(
            [
                name,
                str(len(found)),
                f"{statistics.median(sizes):.1%}",
                f"{sum(size <= 0.1 for size in sizes)}",
                f"{worst:+.0%} ({_title({'': where})}, {where.of.gbps:g} Gbit/s)",
            ]
        )
    return markdown(["system", "cells", "median error", "within 10 %", "largest error"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "grid": grid,
    "systems": every_system,
    "simulator": simulator,
}


def written_anew(text: str) -> str:
    """A page with its tables as the results are now."""
    return _REGION.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def outdated(pages: Sequence[Path] = PAGES) -> list[Path]:
    return [page for page in pages if written_anew(page.read_text()) != page.read_text()]


def _title(cell: dict[str, Row]) -> str:
    model = next(iter(cell.values())).of.model
    return TITLES.get(model, model)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written_anew(page.read_text()))
