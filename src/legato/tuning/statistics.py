"""Statistics: what the ranks have measured in a few steps, checked and brought together.

Every rank sends one `Report` for each window of ten steps; `gather` makes `Statistics` of them, or says why they are
no ground for a decision. What it refuses changes nothing: the last good plan stays.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from legato.core import Workload
from legato.errors import InputError
from legato.records import build
from legato.tuning.candidate import Candidate

WINDOW_STEPS = 10
"""Steps that are averaged before a decision, as in AutoByte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one rank has measured in one window: AutoByte's table II."""

    rank: int
    steps_s: tuple[float, ...]
    """Time of each step."""
    forward_s: tuple[float, ...]
    """Forward time of each layer, the median over the window."""
    backward_s: tuple[float, ...]
    """Backward time of each layer."""
    up_bytes_per_s: tuple[float, ...]
    """Rate at which this rank's bytes left, step by step."""
    down_bytes_per_s: tuple[float, ...]
    """Rate at which bytes came."""

    def to_json(self) -> str:
        """For the way to rank 0, in six digits: some 3 KB for a model of a hundred layers."""
        return json.dumps({name: _short(value) for name, value in asdict(self).items()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Read what `to_json` wrote; anything else is refused."""
        try:
            return build(cls, json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"report: not one of a rank ({error!r:.100})") from None


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_short(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """One window of a whole job: what tuners are told."""

    candidate: Candidate
    """What was run."""
    iteration_s: float
    """Time of a step."""
    workload: Workload
    """Bytes and measured times by layer; of the slowest rank, because the others wait for it."""
    rates_bytes_per_s: tuple[float, ...] = ()
    """Goodput of the slowest rank step by step, both directions taken together by the slower one."""


def gather(reports: Sequence[Report], *, candidate: Candidate, workers: int, workload: Workload) -> Statistics | str:
    """The reports of one window as statistics, or the reason why they are not used."""
    missing = sorted(set(range(workers)) - {report.rank for report in reports})
    if missing or len(reports) != workers:
        return f"no report of rank {', '.join(map(str, missing))}" if missing else "a rank reported twice"
    for report in reports:
        if (reason := _reason_against(report, len(workload.layers))) is not None:
            return f"rank {report.rank}: {reason}"
    slowest = max(reports, key=lambda report: sum(report.forward_s) + sum(report.backward_s))
    layers = tuple(
        replace(layer, forward_s=forward, backward_s=backward)
        for layer, forward, backward in zip(workload.layers, slowest.forward_s, slowest.backward_s, strict=True)
    )
    # A step takes as long as its slowest rank; the median leaves out the one that stumbled.
    steps_s = [max(times) for times in zip(*(report.steps_s for report in reports), strict=False)]
    rates = [
        min(rate for pair in step for rate in pair)
        for step in zip(
            *(tuple(zip(report.up_bytes_per_s, report.down_bytes_per_s, strict=False)) for report in reports),
            strict=False,
        )
    ]
    return Statistics(
        candidate=candidate,
        iteration_s=median(steps_s),
        workload=Workload(workload.name, layers),
        rates_bytes_per_s=tuple(rates),
    )


def _reason_against(report: Report, layers: int) -> str | None:
    """Why a report cannot be true."""
    if len(report.forward_s) != layers or len(report.backward_s) != layers:
        return f"{len(report.forward_s)} forward and {len(report.backward_s)} backward times for {layers} layers"
    if not report.steps_s:
        return "no step was measured"
    numbers = (
        *(*report.steps_s, *report.forward_s, *report.backward_s),
        *(*report.up_bytes_per_s, *report.down_bytes_per_s),
    )
    if not all(isfinite(value) for value in numbers):
        return "a value is not a number"
    if any(value < 0 for value in numbers) or any(value == 0 for value in report.steps_s):
        return "a time ran backwards"
    compute_s = sum(report.forward_s) + sum(report.backward_s)
    middle_s = median(report.steps_s)
    if compute_s > 1.5 * middle_s:
        return f"layers take {compute_s:.3g} s together, the whole step {middle_s:.3g} s: the clock stepped"
    if max(report.steps_s) > 100 * middle_s:
        return f"one step took {max(report.steps_s):.3g} s, the others {middle_s:.3g} s: the clock stepped"
    return None
