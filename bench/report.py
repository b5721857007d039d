"""Figures: what a measurement found, what was wanted, and both as a JSON line and as a row of a table."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number."""

    section: str
    """Which measurement it belongs to."""
    case: str
    """What was measured."""
    value: float
    """The number."""
    unit: str
    """What it counts; empty for a ratio."""
    at_most: float | None = None
    """The target, where there is one."""
    at_least: float | None = None
    """The target, where more is better."""
    details: dict[str, float | str] = field(default_factory=dict)
    """The numbers it was made from."""

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing where there is no target."""
        if self.at_most is not None:
            return "met" if self.value <= self.at_most else "missed"
        if self.at_least is not None:
            return "met" if self.value >= self.at_least else "missed"
        return ""

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else ""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "verdict": self.verdict}, ensure_ascii=False)


def publish(figures: Iterable[Figure], out: Path | None) -> int:
    """Tell each figure as it comes, append it to a file as a JSON line, and show all in the end.

    0 when every target is met, 1 otherwise: what the command exits with.
    """
    console = Console(markup=False)  # a case may be a command with brackets in it
    published = []
    for figure in figures:
        published.append(figure)
        console.print(f"{figure.section}: {figure.case}: {figure.value:.4g} {figure.unit} {figure.verdict}")
        if out is not None:
            with out.open("a") as file:
                file.write(figure.to_json() + "\n")
    _print_table(published, console)
    return int(any(figure.verdict == "missed" for figure in published))


def _print_table(figures: Iterable[Figure], console: Console) -> None:
    """A row each."""
    table = Table("section", "case", "figure", "wanted", "", "from")
    for figure in figures:
        table.add_row(
            figure.section,
            figure.case,
            f"{_short(figure.value)} {figure.unit}".strip(),
            figure.target,
            figure.verdict,
            ", ".join(f"{name} {_short(value)}" for name, value in figure.details.items()),
        )
    console.print(table)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
