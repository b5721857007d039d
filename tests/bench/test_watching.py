"""What watching costs: figures from turns whose times are known, and a small run of the whole measurement."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("optuna")

from bench.grid import recipe
from bench.testbed.namespace import is_permitted
from bench.watching import ALL, DASHBOARD, OFF, PROGRESS, TIMELINE, Turn, Turns, estimate, figures, measure


def turns(step_s: float, thread_s: float, rounds: int = 3) -> list[Turn]:
    return [Turn(steps_s=[step_s, step_s], thread_s=thread_s, process_s=2 * thread_s)] * rounds


def test_a_step_that_takes_two_percent_longer_misses_the_target_and_its_thread_meets_it() -> None:
    rank: Turns = {OFF: turns(1.0, 0.100), TIMELINE: turns(1.02, 0.105)}
    step, thread = figures("case", [rank, rank], TIMELINE, {})
    assert (step.value, step.details["low"], step.details["high"]) == pytest.approx((2, 2, 2))
    assert step.verdict == "missed"
    assert thread.value == pytest.approx(0.5)
    assert thread.details["all threads of a rank, ms a step"] == pytest.approx(10)
    assert thread.verdict == "met"


def test_each_round_has_its_own_ratio() -> None:
    """The machine is half as fast in the second round, with a watcher and without."""
    rank: Turns = {OFF: turns(1, 0.1, 1) + turns(2, 0.1, 1), TIMELINE: turns(1.005, 0.1, 1) + turns(2.01, 0.1, 1)}
    step, _ = figures("case", [rank], TIMELINE, {})
    assert (step.value, step.details["high"]) == pytest.approx((0.5, 0.5))


def test_the_interval_is_students() -> None:
    """By the table: 4.303 standard errors with two degrees of freedom."""
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), rel=1e-3)


@pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")
@pytest.mark.usefixtures("forked_hosts")
def test_the_measurement_watches_in_every_way() -> None:
    cell = next(cell for cell in recipe.read("headline").cells() if cell.model == "gpt2")
    measured = list(measure(replace(cell, hosts=2, at_most_bytes=4_000_000), rounds=2, steps=2))
    by_way = {figure.case.split(": ")[1]: figure for figure in measured if "step takes longer" in figure.case}
    assert list(by_way) == [TIMELINE, DASHBOARD, PROGRESS, ALL]
    for name in (DASHBOARD, ALL):
        assert float(by_way[name].details["events read"]) > 1
    for name in (TIMELINE, ALL):
        assert float(by_way[name].details["timeline MB"]) > 0.01
