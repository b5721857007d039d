"""Curves as an SVG: one panel for each task, one line for each name, on a logarithmic scale."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 420, 300, 45
COLOURS = (
    *("#222222", "#1f77b4", "#17becf", "#2ca02c", "#bcbd22"),
    *("#ff7f0e", "#e377c2", "#d62728", "#8c564b", "#9467bd"),
)


def plot(panels: Mapping[str, Mapping[str, Sequence[float]]], what: str) -> str:
    """The curves of each panel by name, from left to right over their whole length."""
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colours = dict(zip(names, COLOURS, strict=False))
    drawn = [
        f'<g transform="translate({index * WIDTH},0)">{_panel(title, curves, colours, what)}</g>'
        for index, (title, curves) in enumerate(panels.items())
    ]
    left = len(panels) * WIDTH
    legend = [
        f'<text x="{left + 10}" y="{MARGIN + 18 * row}" fill="{colours[name]}">{escape(name)}</text>'
        for row, name in enumerate(names)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 160}" height="{HEIGHT}" '
    style = 'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
    return head + style + "\n".join(drawn + legend) + "\n</svg>\n"


def _panel(title: str, curves: Mapping[str, Sequence[float]], colours: Mapping[str, str], what: str) -> str:
    values = [value for curve in curves.values() for value in curve]
    low, high = math.log10(min(values)), math.log10(max(values))

    def y(value: float) -> float:
        return HEIGHT - MARGIN - (math.log10(value) - low) / (high - low or 1) * (HEIGHT - 2 * MARGIN)

    def x(place: int, count: int) -> float:
        return MARGIN + place / max(count - 1, 1) * (WIDTH - 2 * MARGIN)

    lines = [
        f'<polyline fill="none" stroke="{colours[name]}" stroke-width="1.5" points="'
        + " ".join(f"{x(place, len(curve)):.1f},{y(value):.1f}" for place, value in enumerate(curve))
        + '"/>'
        for name, curve in curves.items()
    ]
    ticks = [
        f'<text x="{MARGIN - 4}" y="{y(value):.1f}" text-anchor="end">{value:.2g}</text>'
        for value in (min(values), math.sqrt(min(values) * max(values)), max(values))
    ]
    frame = f'<path d="M{MARGIN},{MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="#888"/>'
    heading = f'<text x="{WIDTH / 2}" y="25" text-anchor="middle">{escape(title)}: {escape(what)} by step</text>'
    return "\n".join([frame, heading, *ticks, *lines])
