"""Reports of ranks, and what is not believed."""

import math
from dataclasses import replace

import pytest

from legato.core import Layer, Workload
from legato.errors import InputError
from legato.tuning.candidate import BASELINE
from legato.tuning.statistics import Report, Statistics, gather

WORKLOAD = Workload("two layers", (Layer("a", 400, 0.0, 0.0), Layer("b", 800, 0.0, 0.0)))
REPORT = Report(
    rank=0,
    steps_s=(0.1, 0.11, 0.1),
    forward_s=(0.01, 0.02),
    backward_s=(0.02, 0.04),
    up_bytes_per_s=(1e9, 2e9, 1e9),
    down_bytes_per_s=(2e9, 1e9, 3e9),
)


def gathered(*reports: Report) -> Statistics | str:
    return gather(reports, candidate=BASELINE, workers=2, workload=WORKLOAD)


def test_ranks_come_together() -> None:
    slow = replace(REPORT, rank=1, steps_s=(0.12, 0.1, 0.13), forward_s=(0.02, 0.03), up_bytes_per_s=(5e8,) * 3)
    statistics = gathered(slow, REPORT)
    assert isinstance(statistics, Statistics)
    assert statistics.iteration_s == pytest.approx(0.12)
    assert [layer.forward_s for layer in statistics.workload.layers] == [0.02, 0.03]
    assert statistics.rates_bytes_per_s == (5e8, 5e8, 5e8)


def test_a_report_survives_the_way_and_is_small() -> None:
    assert Report.from_json(REPORT.to_json()) == REPORT
    hundred = replace(REPORT, forward_s=(math.pi / 1e6,) * 100, backward_s=(math.pi / 1e6,) * 100)
    assert len(hundred.to_json()) < 3000
    assert Report.from_json(hundred.to_json()).forward_s[0] == pytest.approx(math.pi / 1e6, rel=1e-5)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", REPORT.to_json()[:-1], REPORT.to_json().replace("0.01", '"0.01"'), "[" * 100_000]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="report"):
        Report.from_json(text)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (None, "no report of rank 1"),
        (replace(REPORT, rank=0), "no report of rank 1"),
        (replace(REPORT, rank=1, steps_s=(0.1, math.nan)), "rank 1: a value is not a number"),
        (replace(REPORT, rank=1, backward_s=(0.02, math.inf)), "rank 1: a value is not a number"),
        (replace(REPORT, rank=1, steps_s=(0.1, -5.0)), "rank 1: a time ran backwards"),
        (replace(REPORT, rank=1, steps_s=(0.1, 0.1, 3600.0)), "one step took 3.6e+03 s, the others 0.1 s: the clock"),
        (replace(REPORT, rank=1, forward_s=(0.5, 0.5)), "layers take 1.06 s together, the whole step 0.1 s: the clock"),
        (replace(REPORT, rank=1, forward_s=(0.5,)), "1 forward and 2 backward times for 2 layers"),
        (replace(REPORT, rank=1, steps_s=()), "no step was measured"),
    ],
)
def test_what_cannot_be_is_not_used(second: Report | None, reason: str) -> None:
    answer = gathered(REPORT) if second is None else gathered(REPORT, second)
    assert isinstance(answer, str)
    assert reason in answer


def test_a_rank_must_not_speak_twice() -> None:
    answer = gathered(REPORT, replace(REPORT, rank=1), REPORT)
    assert answer == "a rank reported twice"
