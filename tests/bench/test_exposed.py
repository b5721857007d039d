"""Two ways to tell exposed communication: their comparison from known times, and a small run of the measurement."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")

from bench.exposed import SYSTEMS, Seen, figure, measure
from bench.grid import recipe
from bench.testbed.namespace import is_permitted
from legato.observe.report import Analysis
from legato.observe.report.analysis import Step, Summary


def reported(exposed_s: float) -> Analysis:
    """Steps 7 to 10 of two ranks, of which two are usual ones."""
    steps = tuple(
        Step(
            rank=rank,
            number=number,
            begin_ns=0,
            end_ns=took_ms * 10**6,
            compute_ns=0,
            exposed_ns=0,
            idle_ns=0,
            hidden_ns=0,
            is_whole=True,
        )
        for rank in range(2)
        for number, took_ms in enumerate((1100, 1900, 1100, 900), start=7)
    )
    summary = Summary(step_s=1.1, compute_s=1.0, exposed_s=exposed_s, idle_s=0.0, hidden_s=0.5)
    return Analysis(steps=steps, summary=summary, tensors=(), preemptions=())


@pytest.mark.parametrize(("exposed_s", "percent", "verdict"), [(0.096, 4, "met"), (0.11, 10, "missed")])
def test_the_benchmark_takes_the_same_steps_less_a_step_alone(exposed_s: float, percent: float, verdict: str) -> None:
    alone_s = [1.0, 1.0, 1.4, 0.7]
    ranks = [
        Seen(alone_s=alone_s, steps_s=[1.12, 1.9, 1.1, 0.9]),
        Seen(alone_s=alone_s, steps_s=[1.08, 1.9, 1.1, 0.9]),
    ]
    found = figure("case", ranks, reported(exposed_s))
    assert found.details["steps"] == 2 * 2
    assert found.details["benchmark ms"] == pytest.approx(100)
    assert found.details["report ms"] == pytest.approx(exposed_s * 1e3)
    assert found.value == pytest.approx(percent)
    assert found.verdict == verdict


@pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")
@pytest.mark.usefixtures("forked_hosts")
def test_both_see_the_same_steps() -> None:
    cell = next(cell for cell in recipe.read("headline").cells() if cell.model == "gpt2")
    small = replace(cell, hosts=2, at_most_bytes=4_000_000)
    figures = list(measure([small], SYSTEMS, num_steps=3))
    assert [found.case.split(": ")[1] for found in figures] == list(SYSTEMS)
    for found in figures:
        assert found.details["steps"] == 2 * 3, "those that the loop has timed, on both ranks"
        assert found.details["step of the report ms"] == pytest.approx(found.details["step ms"], rel=0.5)
