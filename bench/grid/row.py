"""A row: what was measured of one system in one cell, with everything it was measured under."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.grid.cell import Cell
from legato.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds are medians over steps and ranks."""

    cell: dict[str, Any]
    """The fields of its cell."""
    system: str
    step_s: float
    turns_s: list[float]
    """The median of each turn: how far they are apart is the noise."""
    bound_s: float
    """T*, with the computation and the goodput measured in the same cell."""
    alone_s: float
    """Computation without communication."""
    num_bytes: int
    """Gradients of a step."""
    scale: float
    shorten: float
    goodput_gbps: float
    """Of one flow of raw TCP through the links as they were shaped: what T* counts with."""
    all_to_all_gbps: float
    """Of raw TCP between all hosts at once."""
    cpu_s: float
    """Processor time of one worker for a step."""
    peak_bytes: int
    """Memory of one worker, at most."""
    chosen: str = ""
    """What the system decided by itself."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Iteration over T*."""
        return self.step_s / self.bound_s

    @property
    def ratios(self) -> list[float]:
        """The same of each turn."""
        return [each / self.bound_s for each in self.turns_s]

    @property
    def spread(self) -> float:
        """Half of the way from the best to the worst turn, over the median."""
        return (max(self.turns_s) - min(self.turns_s)) / 2 / self.step_s

    @property
    def of(self) -> Cell:
        return Cell(**{**self.cell, "systems": tuple(self.cell["systems"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def read(path: Path) -> list[Row]:
    """The rows of a file; where a cell was measured again, the latest. A half-written last line is ignored."""
    try:
        lines = path.read_text().split("\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = Row(**json.loads(line))
        except (ValueError, TypeError):
            if number == len(lines):  # no newline after it: a run was interrupted here
                continue
            raise InputError(f"{path}:{number}: not a row of `legato bench`") from None
        rows[json.dumps([row.cell, row.system], sort_keys=True)] = row
    return list(rows.values())


def append(path: Path, rows: Iterable[Row]) -> None:
    """All rows of a cell in one write: a cell is there whole, or will be measured again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])  # what an interrupted run left of its last line
    with path.open("a") as file:
        file.write("".join(row.to_json() + "\n" for row in rows))


def missing(cells: Iterable[Cell], rows: Iterable[Row]) -> list[Cell]:
    """The cells that have not been measured with all of their systems."""
    known = {(row.of, row.system) for row in rows}
    return [cell for cell in cells if any((cell, system) not in known for system in cell.systems)]


def median_turns(ranks_s: Iterable[list[list[float]]]) -> list[float]:
    """The median of each turn over ranks and steps."""
    return [statistics.median(second for turn in turns for second in turn) for turns in zip(*ranks_s, strict=True)]
