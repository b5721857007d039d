"""The pictures of docs/concepts.md: `python docs/pictures.py` draws them from simulated runs of a model of four layers.

Forward takes 10 ms a layer and backward 20 ms; the link carries 1 MB in 1 ms, so a layer's megabytes are milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Literal

from legato.core import Command, Event, Finished, Layer, Plan, Start, Workload
from legato.core.policies import by_name
from legato.sim import Cluster, simulate
from legato.sim.cluster import Architecture

IMAGES = Path(__file__).parent / "images"

MB = 1_000_000
SIZES = (5, 15, 30, 40)
MODEL = Workload("four layers", tuple(Layer(str(i), mb * MB, 0.010, 0.020) for i, mb in enumerate(SIZES, start=1)))
LINK = Cluster(workers=2, gbps=8, architecture=Architecture.ALLREDUCE)
STEP = 2
"""The step that is drawn: by then all steps are alike."""

COLOURS = {"1": "#4269d0", "2": "#3ca951", "3": "#efb118", "4": "#ff725c"}
INK, FAINT = "#1f2328", "#8c959f"
WIDTH, LEFT, ROW = 760, 92, 26
FONT = "font-family='system-ui, sans-serif' font-size='13'"


@dataclass
class Run:
    """What one simulated worker did, in seconds."""

    plan: Plan
    computed: list[tuple[str, str, int, float, float]] = field(default_factory=list)
    """Work, layer, step, from, to."""
    sent: list[tuple[int, str, float, float]] = field(default_factory=list)
    """Step, layer, from, to: while the part was on the link, which carries one at a time."""
    _issued: dict[object, float] = field(default_factory=dict)
    _free_s: float = 0.0

    def event(self, now_s: float, what: Event | Command) -> None:
        if isinstance(what, Start):
            self._issued[what.part] = now_s
        elif isinstance(what, Finished):
            [tensor] = self.plan.buckets[what.part.bucket]
            begin_s = max(self._issued.pop(what.part), self._free_s)
            self.sent.append((what.part.step, MODEL.layers[tensor].name, begin_s, now_s))
            self._free_s = now_s

    def worked(
        self, work: Literal["forward", "backward", "wait"], layer: str, step: int, begin_s: float, end_s: float
    ) -> None:
        self.computed.append((work, layer, step, begin_s, end_s))


def plan(policy: str = "bytescheduler", *, parts: bool = True, credit: bool = True, barrier: bool = False) -> Plan:
    """Parts of 5 MB, of which one may be on its way, by priority, across the barrier; or without one of these."""
    size = 5 * MB if parts else 1000 * MB
    written = by_name(policy).plan(MODEL.tensors, partition_bytes=size, credit_bytes=size if credit else 1000 * MB)
    return replace(written, step_barrier=barrier)


def box(x: float, y: float, width: float, height: float, fill: str, label: str = "", opacity: float = 1) -> str:
    shape = (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height}' fill='{fill}' fill-opacity='{opacity}' "
        "stroke='#ffffff' stroke-width='1'/>"
    )
    return shape + (text(x + width / 2, y + height / 2 + 4.5, label, anchor="middle") if label else "")


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, weight: str = "normal") -> str:
    style = f"text-anchor='{anchor}' fill='{fill}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {FONT} {style}>{escape(words)}</text>"


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, dashes: str = "none", width: float = 1
) -> str:
    return (
        f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' stroke-width='{width}' "
        f"stroke-dasharray='{dashes}'/>"
    )


def document(height: float, about: str, shapes: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' role='img'>"
    back = f"<rect width='{WIDTH}' height='{height:.0f}' rx='6' fill='#ffffff'/>"
    return "\n".join((head, f"<title>{escape(about)}</title>", back, *shapes, "</svg>", ""))


def steps(about: str, panels: Sequence[tuple[str, Plan]]) -> str:
    """One step under each plan, from the beginning of a backward pass to the end of the next forward pass."""
    shapes: list[str] = []
    top = 12.0
    for title, written in panels:
        run = Run(written)
        result = simulate(MODEL, LINK, written, observers=[run])
        begin_s = min(begin for work, _, step, begin, _ in run.computed if work == "backward" and step == STEP)
        scale = (WIDTH - LEFT - 24) / 0.150
        compute_y, network_y = top + 28, top + 28 + ROW + 6

        def at(seconds: float, begin_s: float = begin_s, scale: float = scale) -> float:
            return LEFT + (seconds - begin_s) * scale

        shapes.append(text(LEFT, top + 16, f"{title}: {result.iteration_s * 1e3:.0f} ms a step", weight="600"))
        shapes.append(text(LEFT - 10, compute_y + 18, "compute", anchor="end", fill=FAINT))
        shapes.append(text(LEFT - 10, network_y + 18, "network", anchor="end", fill=FAINT))
        for work, layer, step, first, last in run.computed:
            if (work, step) == ("backward", STEP):
                shapes.append(
                    box(at(first), compute_y, (last - first) * scale, ROW, COLOURS[layer], f"← {layer}", 0.45)
                )
            elif (work, step) == ("forward", STEP + 1):
                shapes.append(box(at(first), compute_y, (last - first) * scale, ROW, COLOURS[layer], f"{layer} →"))
            elif (work, step) == ("wait", STEP + 1):
                shapes.append(box(at(first), compute_y, (last - first) * scale, ROW, "#eaeef2"))
                if last - first > 0.012:
                    shapes.append(text(at((first + last) / 2), compute_y + 18, "waits", anchor="middle", fill=FAINT))
        for step, layer, first, last in run.sent:
            if step == STEP:
                label = layer if last - first > 0.004 else ""
                shapes.append(box(at(first), network_y, (last - first) * scale, ROW, COLOURS[layer], label))
        top = network_y + ROW + 14
    shapes.append(text(LEFT, top + 10, "← backward     forward →     the number is the layer", fill=FAINT))
    return document(top + 24, about, shapes)


def gain() -> str:
    """A step by how long communication takes, relative to computation."""
    ratios = [2 ** (place / 8) for place in range(-20, 21)]
    compute_s = MODEL.compute_s
    curves: dict[str, list[float]] = {"no overlap": [], "DDP": [], "legato": [], "T*": []}
    for ratio in ratios:
        scaled = MODEL.scaled(bytes_by=ratio * compute_s / (sum(SIZES) * 1e-3))
        part = max(scaled.num_bytes // 200, 4)
        ddp = by_name("wfbp").plan(scaled.tensors, buckets=tuple((place,) for place in reversed(range(4))))
        fine = by_name("bytescheduler").plan(scaled.tensors, partition_bytes=part, credit_bytes=part)
        curves["no overlap"].append(1 + ratio)
        curves["DDP"].append(simulate(scaled, LINK, ddp).iteration_s / compute_s)
        found = simulate(scaled, LINK, fine)
        curves["legato"].append(found.iteration_s / compute_s)
        curves["T*"].append(found.bound_s / compute_s)
    left, top, width, height, most = 60, 16, 560, 270, 3.5

    def at(ratio: float, value: float) -> tuple[float, float]:
        return left + width * ratio / 2.5, top + height * (1 - (value - 0.8) / (most - 0.8))

    shapes = []
    for value in (1, 1.5, 2, 2.5, 3, 3.5):
        shapes.append(line(left, at(0, value)[1], left + width, at(0, value)[1], "#d0d7de"))
        shapes.append(text(left - 8, at(0, value)[1] + 4, f"{value:g}", anchor="end", fill=FAINT))
    for ratio in (0, 0.5, 1, 1.5, 2, 2.5):
        shapes.append(text(at(ratio, 1)[0], top + height + 18, f"{ratio:g}", anchor="middle", fill=FAINT))
    styles = {
        "no overlap": (FAINT, "none"),
        "DDP": ("#ff725c", "none"),
        "legato": ("#4269d0", "none"),
        "T*": (INK, "4 4"),
    }
    for name, (colour, dashes) in styles.items():
        drawn = [at(ratio, value) for ratio, value in zip(ratios, curves[name], strict=True) if ratio <= 2.5]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        style = f"fill='none' stroke='{colour}' stroke-width='2.2' stroke-dasharray='{dashes}'"
        shapes.append(f"<polyline points='{points}' {style}/>")
    for place, (name, (colour, dashes)) in enumerate(styles.items()):
        y = top + 24 + 22 * place
        shapes.append(line(left + 24, y, left + 56, y, colour, dashes, 2.2))
        shapes.append(text(left + 64, y + 4.5, name))
    shapes.append(text(left + width / 2, top + height + 40, "communication ÷ computation", anchor="middle"))
    shapes.append(text(left + width + 12, at(0, 1)[1] + 4, "computation alone", fill=FAINT))
    about = "Step time over computation as communication grows: no overlap, DDP, legato and the bound T*"
    return document(top + height + 52, about, shapes)


def guard() -> str:
    """Blocks of a trial, and what counts."""
    shapes = [text(LEFT, 28, "A trial: blocks of three steps in an order that cancels drift", weight="600")]
    x, width = float(LEFT), 50.0
    for name, colour in (("wfbp", "#ff725c"), ("plan", "#4269d0"), ("plan", "#4269d0"), ("wfbp", "#ff725c")):
        shapes.append(text(x + 1.5 * width, 58, "baseline" if name == "wfbp" else "candidate", anchor="middle"))
        for step in range(3):
            shapes.append(
                box(x + step * width, 68, width, ROW, colour, "" if step else "–", 0.2 if step == 0 else 0.75)
            )
        x += 3 * width + 8
    shapes.append(
        text(
            LEFT,
            118,
            "The first step of a block (–) still waits for what the other plan has sent, so it does not count.",
            fill=FAINT,
        )
    )
    shapes.append(
        text(LEFT, 138, "The candidate stays only if it is faster by more than two standard errors.", fill=FAINT)
    )
    return document(
        152, "Baseline and candidate take turns in blocks of three steps; the first of each does not count", shapes
    )


def pictures() -> dict[str, str]:
    whole = plan(parts=False)
    return {
        "concept-step": steps(
            "One step of a model of four layers without a scheduler",
            [("Gradients leave in the order in which they appear", plan("fifo", parts=False, barrier=True))],
        ),
        "concept-priority": steps(
            "The same parts, in order of arrival and by priority",
            [("In order of arrival", plan("fifo")), ("By priority", plan())],
        ),
        "concept-partition": steps(
            "Priority without and with parts", [("Whole tensors, by priority", whole), ("Parts, by priority", plan())]
        ),
        "concept-credit": steps(
            "Parts by priority without and with a credit",
            [("No limit: all parts are handed over at once", plan(credit=False)), ("A credit of one part", plan())],
        ),
        "concept-barrier": steps(
            "With and without a barrier between steps",
            [("Forward waits for every average", plan(barrier=True)), ("Each layer waits for its own", plan())],
        ),
        "concept-gain": gain(),
        "concept-guard": guard(),
    }


if __name__ == "__main__":
    for name, picture in pictures().items():
        (IMAGES / f"{name}.svg").write_text(picture)
