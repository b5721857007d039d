"""What a recipe is: a published figure, and how to make ours of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from plotly.graph_objects import Figure

from bench.study.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of ours beside the paper's."""

    case: str
    ours: float
    paper: float | tuple[float, float] | None
    """What is published, or was measured; a pair is a range; None where there is no number."""
    unit: str
    """`%` of gain, `×`, or a unit of time or size."""
    why: str
    """The reason for the difference in one sentence, with the number that supports it."""

    def ours_text(self) -> str:
        return _text(self.ours, self.unit)

    def paper_text(self) -> str:
        if self.paper is None:
            return "–"
        if isinstance(self.paper, tuple):
            low, high = self.paper
            return f"{_text(low, self.unit)} to {_text(high, self.unit)}"
        return _text(self.paper, self.unit)

    def to_dict(self, recipe: str) -> dict[str, object]:
        return {"recipe": recipe, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure whose title is its finding."""

    name: str
    finding: str
    caption: str
    """Axes, settings and assumptions, for somebody who reads only this."""
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a recipe has found."""

    rows: tuple[Row, ...]
    charts: tuple[Chart, ...]


class Recipe(NamedTuple):
    """A published figure, and the function that makes ours."""

    name: str
    source: str
    question: str
    run: Callable[[Runs], Findings]


def gain(before_s: float, after_s: float) -> float:
    """How much faster, in per cent of speed."""
    return (before_s / after_s - 1) * 100


def percent(value: float, digits: int = 0) -> str:
    """A gain as people read it: +20 %, -3.5 %, and ±0 % where nothing is left after rounding."""
    text = f"{value:+.{digits}f}"
    return f"{text if float(text) else '±0'} %"


def _text(value: float, unit: str) -> str:
    if unit == "%":
        return percent(value, 0 if abs(value) >= 10 else 1)
    if unit == "×":
        return f"{value:.2f}×"
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
