"""The report: one HTML page that needs no network, the figures as pictures, and the table for the docs."""

import base64
import json
import re
from collections.abc import Sequence
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from plotly.io import to_json
from plotly.offline import get_plotlyjs

from bench.browser import rendered
from bench.study.recipe import Chart, Findings, Recipe

STYLE = """
body { font: 16px/1.5 Helvetica, Arial, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h2 { margin-top: 2.5em; border-top: 1px solid #ccc; padding-top: 1em; }
table { border-collapse: collapse; font-size: 14px; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3em .7em; border-bottom: 1px solid #ddd; }
td.number { text-align: right; white-space: nowrap; }
figcaption, .source { color: #555; font-size: 14px; } figure { margin: 1.5em 0; overflow-x: auto; }
"""


HEADINGS = "<th>case</th><th>simulated</th><th>published or measured</th><th>why</th>"


class Result(NamedTuple):
    """A recipe and what it found."""

    recipe: Recipe
    findings: Findings


def to_html(results: Sequence[Result]) -> str:
    """The whole report as one page; plotly's code is part of it."""
    contents = "".join(
        f'<li><a href="#{result.recipe.name}">{escape(result.recipe.source)}</a>: {escape(result.recipe.question)}</li>'
        for result in results
    )
    sections = "".join(_section(result) for result in results)
    return _page(
        f"<h1>Does scheduling help, where, how much?</h1><p>{escape(INTRODUCTION)}</p><ul>{contents}</ul>{sections}",
        [chart for result in results for chart in result.findings.charts],
        "Plotly.newPlot(`chart-${name}`, figure.data, figure.layout, {displayModeBar: false});",
    )


INTRODUCTION = (
    "Every recipe simulates a published figure at the paper's scale with the scheduling core that runs for real, and "
    "puts our number beside the paper's with the reason for the difference. Assumed, not measured: what a V100 reaches "
    "with each model, and what an operation costs beside its bytes (latency 5 µs and 10 µs of the sender's link with "
    "RDMA, 30 and 50 µs with TCP; bench/study/settings.py). Links are ideal otherwise. The title of a figure says what "
    "it shows."
)


def _section(result: Result) -> str:
    rows = "".join(
        f'<tr><td>{escape(row.case)}</td><td class="number">{escape(row.ours_text())}</td>'
        f'<td class="number">{escape(row.paper_text())}</td><td>{escape(row.why)}</td></tr>'
        for row in result.findings.rows
    )
    charts = "".join(
        f'<figure><div id="chart-{chart.name}"></div><figcaption>{escape(chart.caption)}</figcaption></figure>'
        for chart in result.findings.charts
    )
    return (
        f'<section id="{result.recipe.name}"><h2>{escape(result.recipe.question)}</h2>'
        f'<p class="source">{escape(result.recipe.source)}</p>{charts}'
        f"<table><thead><tr>{HEADINGS}</tr></thead><tbody>{rows}</tbody></table>"
        "</section>"
    )


def _page(body: str, charts: Sequence[Chart], draw: str) -> str:
    figures = {chart.name: json.loads(to_json(chart.figure)) for chart in charts}
    data = json.dumps(figures).replace("</", "<\\/")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>legato: the study</title>'
        f"<style>{STYLE}</style>"
        f"<script>{get_plotlyjs()}</script></head><body>{body}"
        f"<script>for (const [name, figure] of Object.entries({data})) {{ {draw} }}</script></body></html>"
    )


EXPORT = """
const div = document.createElement("div"); document.body.append(div);
Plotly.newPlot(div, figure.data, figure.layout).then(async () => {
  for (const format of ["svg", "png"]) {
    const out = document.createElement("pre"); out.className = "export"; out.title = `${name}.${format}`;
    out.textContent = await Plotly.toImage(div, {format}); document.body.append(out);
  }
  div.remove();
});
"""


def write_pictures(browser: str, charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Every chart as SVG and PNG, drawn by the same code in the same browser as the report."""
    page = folder / "export.html"
    page.write_text(_page("", charts, EXPORT))
    document = rendered(browser, page)
    page.unlink()
    written = []
    for name, url in re.findall(r'<pre class="export" title="([^"]+)">(.*?)</pre>', document, re.DOTALL):
        kind, _, content = unescape(url).partition(",")
        path = folder / name
        path.write_bytes(base64.b64decode(content) if kind.endswith("base64") else unquote(content).encode())
        written.append(path)
    return sorted(written)


def to_markdown(results: Sequence[Result], pictures: str) -> str:
    """The page for the docs: every row, and every chart as a picture in `pictures`."""
    parts = [f"# The study\n\n{HEADER}\n"]
    for recipe, findings in results:
        parts.append(f"## {recipe.source}: {recipe.question[0].lower()}{recipe.question[1:]}\n")
        parts.append("| case | simulated | published or measured | why |\n|---|---|---|---|")
        parts += [f"| {row.case} | {row.ours_text()} | {row.paper_text()} | {row.why} |" for row in findings.rows]
        parts.append("")
        parts += [f"![{chart.finding}]({pictures}/{chart.name}.png)\n\n{chart.caption}\n" for chart in findings.charts]
    return "\n".join(parts)


HEADER = (
    "Generated by `legato study --publish`; do not edit. "
    + INTRODUCTION
    + " `legato study` writes the same as one HTML "
    "page with figures to look into (`build/study/report.html`)."
)
