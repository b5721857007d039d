"""The tables in README.md and docs/benchmark.md, from bench/results: `python -m bench.grid.pages` writes them anew.

A table stands between two comments that name it; everything else on a page is written by hand.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from bench.grid.lineup import ALONE, system
from bench.grid.prediction import predicted_s
from bench.grid.row import Row, read
from bench.grid.tables import by_cell, markdown, scaling
from bench.study.settings import TITLES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmark.md")
TOLERATED = 0.02
"""How much slower than tuned DDP a cell may be."""
_REGION = re.compile(r"(<!-- table (\S+): [^>]*-->\n).*?(<!-- end -->)", re.DOTALL)


def headline() -> str:
    """Iteration over T*, models against systems."""
    lines = [
        [
            f"{_title(cell['legato'])} ({scaling(cell['legato'])})",
            f"{cell['ddp'].ratio:.2f}",
            f"{cell['ddp:tuned'].ratio:.2f}",
            f"{cell['c10d'].ratio:.2f}",
            f"**{cell['legato'].ratio:.3f}**",
            f"{cell['ddp:tuned'].step_s / cell['legato'].step_s:.2f}×",
        ]
        for cell in by_cell(read(RESULTS / "headline.jsonl"))
    ]
    header = ["", "DDP/Gloo", "DDP/Gloo, tuned buckets", "legato over Gloo", "legato", "faster than tuned DDP"]
    return markdown(header, lines)


def grid() -> str:
    """Every cell: iteration over T*, and how much longer than by tuned DDP."""
    lines, slower = [], {"legato": 0, "c10d": 0}
    cells = by_cell(read(RESULTS / "grid.jsonl"))
    for cell in cells:
        tuned = cell["ddp:tuned"]
        communication_s = tuned.num_bytes * tuned.of.cluster(tuned.goodput_gbps * 1e9 / 8).seconds_per_byte
        line = [
            _title(tuned),
            f"{tuned.of.gbps:g}",
            scaling(tuned),
            f"{communication_s / tuned.alone_s:.2g}",
            f"{tuned.ratio:.2f}",
        ]
        for name in slower:
            longer = cell[name].step_s / tuned.step_s - 1
            slower[name] += longer > TOLERATED
            line.append(f"{cell[name].ratio:.2f} ({longer:+.0%}, ± {cell[name].spread + tuned.spread:.0%})")
        lines.append(line)
    header = [
        "model",
        "Gbit/s",
        "scaled",
        "communication / computation",
        "tuned DDP",
        "legato (PS)",
        "legato (all-reduce)",
    ]
    return (
        f"{markdown(header, lines)}\n\n{len(cells)} cells. More than {TOLERATED:.0%} slower than tuned DDP: legato by "
        f"its own engine in {slower['legato']}, over Gloo's all-reduce in {slower['c10d']}."
    )


def systems() -> str:
    """All systems on one model, the fastest first."""
    rows = sorted(read(RESULTS / "systems.jsonl"), key=lambda row: row.step_s)
    lines = [
        [
            f"`{row.system}`",
            system(row.system).sums,
            f"{row.step_s * 1e3:.0f} ms ± {row.spread:.0%}",
            f"{row.ratio:.2f}",
            f"{row.cpu_s * 1e3:.0f} ms",
            f"{row.peak_bytes / 1e6:.0f} MB",
            row.chosen,
        ]
        for row in rows
        if row.system != ALONE
    ]
    return markdown(["system", "sums", "a step", "over T*", "processor", "memory", "chose"], lines)


def measured_rows() -> list[Row]:
    """What the simulator is held against."""
    return [row for name in ("headline", "grid") for row in read(RESULTS / f"{name}.jsonl") if row.system != ALONE]


@cache
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
                f"{worst:+.0%} ({_title(where)}, {where.of.gbps:g} Gbit/s)",
            ]
        )
    return markdown(["system", "cells", "median error", "within 10 %", "largest error"], lines)


TABLES: dict[str, Callable[[], str]] = {"headline": headline, "grid": grid, "systems": systems, "simulator": simulator}


def written_anew(text: str) -> str:
    """A page with its tables as the results are now."""
    return _REGION.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def outdated(pages: Sequence[Path] = PAGES) -> list[Path]:
    return [page for page in pages if written_anew(page.read_text()) != page.read_text()]


def _title(row: Row) -> str:
    return TITLES.get(row.of.model, row.of.model)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written_anew(page.read_text()))
