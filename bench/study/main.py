"""Runs the recipes and writes what they found: what `legato study` calls."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from bench.browser import find_browser
from bench.study import (
    autobyte,
    autobyte_search,
    byteps,
    bytescheduler,
    dear,
    growth,
    how_useful,
    measured,
    overview,
    p3,
)
from bench.study.recipe import Recipe
from bench.study.report import Result, to_html, to_markdown, write_pictures
from bench.study.runs import Runs
from legato.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for paper in (overview, bytescheduler, autobyte, autobyte_search, byteps, how_useful, dear, p3, growth, measured)
    for recipe in paper.RECIPES
}
Say = Callable[[str], None]


def study(names: Sequence[str], out: Path | None, *, publish: bool, say: Say) -> None:
    """Run the recipes of these names, or all of them, and write the report to `out` (build/study).

    What is published are the pages under docs/ and the numbers under bench/results/; they need every recipe.
    """
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise InputError(f"study: recipe {unknown[0]!r} is unknown; accepted: {', '.join(RECIPES)}")
    if publish and names:
        raise InputError("study: --publish needs every recipe; leave the names out")
    folder = out or ROOT / "build" / "study"
    folder.mkdir(parents=True, exist_ok=True)
    results = run([RECIPES[name] for name in names or RECIPES], Runs(folder / "runs.jsonl"), say)
    report = folder / "report.html"
    report.write_text(to_html(results))
    say(f"report: {report}")
    _draw(results, folder, say)
    write_rows(results, folder / "study.jsonl")
    (folder / "study.md").write_text(to_markdown(results, "."))
    if publish:
        _publish(results, say)


def run(recipes: Sequence[Recipe], runs: Runs, say: Say) -> list[Result]:
    results = []
    for place, recipe in enumerate(recipes, start=1):
        say(f"[{place}/{len(recipes)}] {recipe.name}: {recipe.question}")
        begin, simulated, remembered = perf_counter(), runs.simulated, runs.remembered
        results.append(Result(recipe, recipe.run(runs)))
        say(
            f"    {runs.simulated - simulated} simulations, {runs.remembered - remembered} remembered, "
            f"{perf_counter() - begin:.1f} s"
        )
    return results


def write_rows(results: Sequence[Result], path: Path) -> None:
    """Every row as a line of JSON."""
    lines = [json.dumps(row.to_dict(recipe.name)) for recipe, findings in results for row in findings.rows]
    path.write_text("\n".join(lines) + "\n")


def _draw(results: Sequence[Result], folder: Path, say: Say) -> None:
    browser = find_browser()
    if browser is None:
        say("no pictures: drawing them takes a Chromium (apt install chromium); the report does not need one")
        return
    charts = [chart for result in results for chart in result.findings.charts]
    say(f"pictures: {len(write_pictures(browser, charts, folder))} files in {folder}")


def _publish(results: Sequence[Result], say: Say) -> None:
    docs = ROOT / "docs"
    pictures = docs / "study"
    pictures.mkdir(exist_ok=True)
    browser = find_browser()
    if browser is None:
        raise InputError("study: --publish draws the docs' pictures, and that takes a Chromium (apt install chromium)")
    for path in pictures.glob("*.png"):
        path.unlink()
    for path in write_pictures(browser, [c for result in results for c in result.findings.charts], pictures):
        if path.suffix == ".svg":
            path.unlink()
    (docs / "study.md").write_text(to_markdown(results, "study"))
    write_rows(results, ROOT / "bench" / "results" / "study.jsonl")
    say(f"published: {docs / 'study.md'} and bench/results/study.jsonl")
