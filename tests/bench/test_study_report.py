"""The report, as it is written and as a browser without a network draws it."""

import re
import struct
import zlib
from html import unescape
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from bench.browser import find_browser, rendered
from bench.study.figures import COLOURS, Axes, bars, gantt, heat_maps, lines, panels, stack
from bench.study.recipe import Chart, Findings, Recipe, Row
from bench.study.report import Result, to_html, to_markdown, write_pictures

AXES = Axes(x="bandwidth, Gbit/s", y="gain, %", log_x=True, x_ticks=(1, 10, 100))
SERIES = {"fifo": ([1, 10, 100], [0, 20, 5]), "scheduled": ([1, 10, 100], [3, 40, 6])}
GRID = {(partition, credit): float(90 + partition) for partition in (1, 8) for credit in (1, 4)}
SPANS = [("a", "backward", 0.0, 2.0), ("a", "communication", 2.0, 3.0), ("a", "forward", 3.0, 4.0)]
FIGURES = {
    "lines": lines("Lines < curves & more", SERIES, AXES, {"fifo": 15}),
    "panels": panels("Panels", {"one": SERIES, "two": SERIES}, AXES),
    "bars": bars("Bars", ["a", "b"], {"x": [1, 2], "y": [3, 4]}, AXES, " s"),
    "stack": stack("Stack", ["a", "b"], {"alone": [1, 2], "hidden": [3, 4], "exposed": [5, 6]}, "ms"),
    "heat": heat_maps("Heat", {"p": GRID}, {"p": {"best": [(8, 4)], "path": [(1, 1), (8, 4)]}}),
    "gantt": gantt("Gantt", {"fifo": SPANS, "scheduled": SPANS}, ["a"]),
}
CHARTS = [
    Chart(name=name, finding=name, caption=f"caption of {name}", figure=figure) for name, figure in FIGURES.items()
]
ROW = Row(case="VGG16 <64>", ours=89.0, paper=99.0, unit="%", why="Because of a & b.")
FINDINGS = Findings(rows=(ROW,), charts=tuple(CHARTS))
RESULT = Result(Recipe("lines", "A paper", "Does it help?", lambda _: FINDINGS), FINDINGS)

browser = find_browser()
needs_browser = pytest.mark.skipif(browser is None, reason="no Chromium on this machine (apt install chromium)")


def test_the_page_loads_nothing_from_outside() -> None:
    page = to_html([RESULT])
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "VGG16 &lt;64&gt;" in markup
    assert not re.search(r"<(link|img|iframe|script)\b|https?://", markup)
    assert not re.search(r"<script[^>]+src=", page)


def test_the_table_for_the_docs() -> None:
    text = to_markdown([RESULT], "study")
    assert "## A paper: does it help?" in text
    assert "| VGG16 <64> | +89 % | +99 % | Because of a & b. |" in text
    assert "![lines](study/lines.png)" in text


@needs_browser
def test_a_browser_draws_every_figure(tmp_path: Path) -> None:
    assert browser
    page = tmp_path / "report.html"
    page.write_text(to_html([RESULT]))
    document = rendered(browser, page)
    drawn = {name: document[document.index(f'id="chart-{name}"') :].split("</figure>")[0] for name in FIGURES}
    for name, markup in drawn.items():
        assert "main-svg" in markup, name
    assert "Lines &lt; curves &amp; more" in drawn["lines"]
    assert "fifo, published" in drawn["lines"]
    # Two lines in each of two panels and in the legend; four bars; the map's four numbers; two runs of three spans.
    assert drawn["panels"].count("js-line") == 6
    assert drawn["bars"].count('class="point"') == 4
    assert [text for text in re.findall(r">(\d+)</text>", drawn["heat"]) if text in ("91", "98")] == ["91", "98"] * 2
    assert drawn["gantt"].count('class="point"') == 6
    for text in ("bandwidth, Gbit/s", "gain, %"):
        assert text in drawn["lines"]


@needs_browser
def test_pictures_are_drawn_not_blank(tmp_path: Path) -> None:
    assert browser
    written = write_pictures(browser, CHARTS, tmp_path)
    assert {path.name for path in written} == {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")}
    assert sorted(tmp_path.iterdir()) == written
    svg = (tmp_path / "bars.svg").read_text()
    assert svg.startswith("<svg")
    assert "rgb(0, 114, 178)" in unescape(svg)
    width, height, colours = look_at((tmp_path / "bars.png").read_bytes())
    assert (width, height) == (960, 480)
    assert {bytes.fromhex(colour[1:]) for colour in COLOURS[:2]} <= colours
    assert b"\xff\xff\xff" in colours


def look_at(png: bytes) -> tuple[int, int, set[bytes]]:
    """Width, height and all colours of a picture (8 bit RGB or RGBA, not interlaced)."""
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    assert (depth, interlaced) == (8, 0)
    channels = {2: 3, 6: 4}[kind]
    place, data = 8, b""
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            data += png[place + 8 : place + 8 + length]
        place += 12 + length
    return width, height, _colours(zlib.decompress(data), width * channels, channels)


def _colours(rows: bytes, stride: int, channels: int) -> set[bytes]:
    """Undo the filters of the PNG format, line by line."""
    before = bytearray(stride)
    found: set[bytes] = set()
    for begin in range(0, len(rows), stride + 1):
        kind, line = rows[begin], bytearray(rows[begin + 1 : begin + 1 + stride])
        for place in range(stride):
            left = line[place - channels] if place >= channels else 0
            corner = before[place - channels] if place >= channels else 0
            line[place] = (line[place] + _predicted(kind, left, before[place], corner)) & 255
        found |= {bytes(line[place : place + 3]) for place in range(0, stride, channels)}
        before = line
    return found


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 4:
        return min((left, up, corner), key=lambda value: abs(left + up - corner - value))
    return (0, left, up, (left + up) // 2)[kind]
