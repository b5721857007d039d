"""Figures: a few kinds of chart in one style, as plotly objects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from plotly.graph_objects import Bar, Figure, Heatmap, Scatter
from plotly.subplots import make_subplots

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
"""Okabe and Ito's, which people with any kind of colour vision tell apart."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
WIDTH, HEIGHT = 960, 480

Points = tuple[Sequence[float], Sequence[float]]
"""x and y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """How a chart's axes read."""

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[float] = ()
    y_range: tuple[float, float] | None = None


def styled(figure: Figure, finding: str, *, height: int = HEIGHT) -> Figure:
    """One look for all: the finding as title, room for it, no frame."""
    # A number stays with its unit; longer findings get a second line and the room for it.
    title = "<br>".join(wrap(finding.replace(" %", "\u00a0%"), 100))
    more = title.count("<br>")
    return figure.update_layout(
        template="plotly_white",
        title={"text": title, "x": 0.02, "y": 1, "yanchor": "top", "pad": {"t": 18 + 11 * more}, "font": {"size": 17}},
        font={"family": "Helvetica, Arial, sans-serif", "size": 13, "color": "#222222"},
        margin={"l": 80, "r": 30, "t": 85 + 20 * more, "b": 95},
        legend={"orientation": "h", "yanchor": "top", "y": -0.17 * HEIGHT / height, "x": 0},
        width=WIDTH,
        height=height,
        colorway=COLOURS,
        paper_bgcolor="white",
    )


def lines(finding: str, series: Mapping[str, Points], axes: Axes, levels: Mapping[str, float] | None = None) -> Figure:
    """Lines with markers; `levels` are drawn dashed across the whole chart, in the colour of the line of that name."""
    figure = Figure(_traces(series))
    for place, name in enumerate(series):
        if levels and name in levels:
            figure.add_hline(
                levels[name],
                line={"color": COLOURS[place], "dash": "dash", "width": 1.2},
                annotation_text=f"{name}, published",
                annotation_position="top left",
                annotation_font={"color": COLOURS[place], "size": 11},
            )
    _axes(figure, axes)
    return styled(figure, finding)


def panels(
    finding: str,
    charts: Mapping[str, Mapping[str, Points]],
    axes: Axes,
    *,
    columns: int = 2,
    bands: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Small multiples with the same axes and the same series; `bands` shades what a panel's paper has published."""
    rows = -(-len(charts) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=list(charts),
        shared_xaxes=True,
        shared_yaxes="all",
        horizontal_spacing=0.04,
        vertical_spacing=0.14 if rows > 1 else 0.1,
    )
    for place, series in enumerate(charts.values()):
        for trace in _traces(series, legend=place == 0):
            figure.add_trace(trace, row=place // columns + 1, col=place % columns + 1)
    for place, panel in enumerate(charts):
        if bands:
            low, high = bands[panel]
            figure.add_hrect(
                low,
                high,
                row=place // columns + 1,
                col=place % columns + 1,
                fillcolor="#888888",
                opacity=0.18,
                line_width=0,
                annotation_text=f"published, {low:g} to {high:g} %",
                annotation_position="top left",
                annotation_font_size=11,
            )
    _axes(figure, axes)
    _outer_titles(figure, axes, rows)
    return styled(figure, finding, height=HEIGHT if rows == 1 else 330 * rows)


def bars(finding: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], axes: Axes, unit: str) -> Figure:
    """Bars in groups, each with its value above."""
    figure = Figure(
        [
            Bar(
                name=name,
                x=list(groups),
                y=list(values),
                marker_color=COLOURS[place],
                text=[_short(value) + unit for value in values],
                textposition="outside",
                textfont={"size": 11},
                cliponaxis=False,
            )
            for place, (name, values) in enumerate(series.items())
        ]
    )
    _axes(figure, axes)
    return styled(figure.update_layout(barmode="group"), finding)


def stack(finding: str, rows: Sequence[str], layers: Mapping[str, Sequence[float]], x: str) -> Figure:
    """Horizontal bars in layers, the first row at the top."""
    colours = (COLOURS[0], "#9ecae1", COLOURS[1])
    figure = Figure(
        [
            Bar(
                name=name,
                y=list(rows),
                x=list(values),
                orientation="h",
                marker_color=colour,
                text=[f"{value:.0f}" if value >= 1 else "" for value in values],
                textposition="inside",
                insidetextanchor="middle",
            )
            for colour, (name, values) in zip(colours, layers.items(), strict=True)
        ]
    )
    figure.update_layout(barmode="stack", uniformtext={"minsize": 10, "mode": "hide"})
    figure.update_xaxes(title=x).update_yaxes(autorange="reversed", ticksuffix="  ")
    styled(figure, finding, height=max(HEIGHT, 190 + 26 * len(rows)))
    return figure.update_layout(margin={"l": 230}, legend={"traceorder": "normal"})


def heat_maps(
    finding: str,
    charts: Mapping[str, Mapping[tuple[int, int], float]],
    marks: Mapping[str, Mapping[str, Sequence[tuple[int, int]]]],
) -> Figure:
    """Partition × credit in per cent of the best, which is dark.

    `marks` gives each panel named points, joined where there are several.
    """
    figure = make_subplots(rows=1, cols=len(charts), subplot_titles=list(charts), horizontal_spacing=0.06)
    shown: set[str] = set()
    lowest = min(min(values.values()) for values in charts.values())
    for column, (panel, values) in enumerate(charts.items(), start=1):
        partitions = sorted({partition for partition, _ in values})
        credits = sorted({credit for _, credit in values})
        x, y = [str(partition) for partition in partitions], [f"{credit}×" for credit in credits]
        table = [[values[partition, credit] for partition in partitions] for credit in credits]
        figure.add_trace(
            Heatmap(
                x=x, y=y, z=table, zmin=lowest, zmax=100, colorscale="Blues", showscale=False, texttemplate="%{z:.0f}"
            ),
            row=1,
            col=column,
        )
        for place, (name, points) in enumerate(marks[panel].items()):
            figure.add_trace(
                Scatter(
                    name=name,
                    x=[str(partition) for partition, _ in points],
                    y=[f"{credit}×" for _, credit in points],
                    mode="lines+markers" if len(points) > 1 else "markers",
                    marker={"size": 40, "symbol": ("square-open", "circle-open", "diamond-open")[place % 3]}
                    | {"color": COLOURS[1 + place], "line": {"width": 3}},
                    line={"color": COLOURS[1 + place], "width": 2, "dash": "dot"},
                    showlegend=name not in shown,
                    legendgroup=name,
                ),
                row=1,
                col=column,
            )
            shown.add(name)
    figure.update_xaxes(title="partition, MB", type="category").update_yaxes(type="category")
    figure.update_yaxes(title="credit, parts", row=1, col=1)
    return styled(figure, finding)


def gantt(finding: str, charts: Mapping[str, Iterable[tuple[str, str, float, float]]], layers: Sequence[str]) -> Figure:
    """Spans (layer, kind, from ms, to ms), a panel for each run; the first layer at the top."""
    colours = {"backward": COLOURS[0], "communication": COLOURS[1], "forward": COLOURS[2]}
    figure = make_subplots(
        rows=len(charts), cols=1, subplot_titles=list(charts), shared_xaxes=True, vertical_spacing=0.09
    )
    for row, spans in enumerate(charts.values(), start=1):
        listed = list(spans)
        for kind, colour in colours.items():
            chosen = [span for span in listed if span[1] == kind]
            figure.add_trace(
                Bar(
                    name=kind,
                    y=[layer for layer, *_ in chosen],
                    base=[begin for _, _, begin, _ in chosen],
                    x=[end - begin for _, _, begin, end in chosen],
                    orientation="h",
                    marker_color=colour,
                    showlegend=row == 1,
                    legendgroup=kind,
                    width=0.45 if kind == "communication" else 0.85,
                    marker_line_width=0,
                ),
                row=row,
                col=1,
            )
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(layers)), tickfont={"size": 10})
    figure.update_xaxes(title="ms since the last backward pass began", row=len(charts), col=1)
    return styled(figure, finding, height=380 * len(charts))


def _traces(series: Mapping[str, Points], *, legend: bool = True) -> list[Scatter]:
    return [
        Scatter(
            name=name,
            x=list(x),
            y=list(y),
            mode="lines+markers",
            line={"color": COLOURS[place], "dash": DASHES[place], "width": 2.2},
            marker={"symbol": MARKERS[place], "size": 7},
            legendgroup=name,
            showlegend=legend,
        )
        for place, (name, (x, y)) in enumerate(series.items())
    ]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def _axes(figure: Figure, axes: Axes) -> None:
    figure.update_xaxes(title=axes.x, zeroline=False).update_yaxes(title=axes.y, zerolinecolor="#888888")
    if axes.log_x:
        figure.update_xaxes(type="log")
    if axes.log_y:
        figure.update_yaxes(type="log", dtick=1)
    if axes.x_ticks:
        figure.update_xaxes(tickvals=list(axes.x_ticks), ticktext=[f"{tick:g}" for tick in axes.x_ticks])
    if axes.y_range:
        figure.update_yaxes(range=list(axes.y_range))


def _outer_titles(figure: Figure, axes: Axes, rows: int) -> None:
    """Titles at the left and at the bottom only."""
    figure.update_xaxes(title="").update_yaxes(title="")
    figure.update_xaxes(title=axes.x, row=rows)
    for row in range(1, rows + 1):
        figure.update_yaxes(title=axes.y, row=row, col=1)
