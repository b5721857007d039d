"""The meter, by a scripted clock."""

from dataclasses import asdict, replace

import pytest

from legato.core import Layer, Workload
from legato.tuning.candidate import BASELINE
from legato.tuning.live.meter import Meter
from legato.tuning.statistics import WINDOW_STEPS, Statistics, gather

MS = 1_000_000
WORKLOAD = Workload(
    "two layers", (Layer("input", 0, 0, 0), Layer("first", 3_000_000, 0, 0), Layer("second", 1_000_000, 0, 0))
)


def play(meter: Meter, steps: int, *, begin_ms: int = 0, wait_ms: int = 4) -> int:
    """Steps of 24 ms and the wait: input 1, first 2 and 7, second 3 + 9 with 2 ms after the last gradient."""
    at = begin_ms
    for step in range(steps):
        meter.enter(1, (at + 1) * MS)
        at += 1 + wait_ms
        meter.waited((at - wait_ms) * MS, at * MS)
        meter.enter(2, (at + 2) * MS)
        meter.gradient(2, (at + 14) * MS)
        meter.gradient(1, (at + 21) * MS)
        at += 23
        meter.step(at * MS, (6_000_000 * (step + 1), 3_000_000 * (step + 1)))
    return at


def meter() -> Meter:
    return Meter(rank=0, num_layers=3, num_bytes=4_000_000, now_ns=0)


def test_every_moment_of_a_step_belongs_to_a_layer_or_is_a_wait() -> None:
    one = meter()
    play(one, 3)
    assert one.num_steps == 3
    report = one.report()
    assert report.steps_s == pytest.approx([0.028] * 3)
    # 2 ms after the last gradient and 1 ms before the first layer are nobody's: layer 0.
    assert report.forward_s == pytest.approx([0.003, 0.002, 0.004])
    assert report.backward_s == pytest.approx([0.0, 0.007, 0.008])
    assert sum(report.forward_s) + sum(report.backward_s) + 0.004 == pytest.approx(report.steps_s[-1])


def test_rates_count_from_the_first_gradient_to_the_last_wait() -> None:
    one = meter()
    play(one, 3)
    report = one.report()
    # Of 4 MB in 9 + 5 ms; down, half as much went. The first step had no gradients before it.
    assert report.up_bytes_per_s[1:] == pytest.approx([4e6 / 0.014] * 2)
    assert report.down_bytes_per_s[1:] == pytest.approx([2e6 / 0.014] * 2)


def test_without_a_wait_the_rate_is_unknown() -> None:
    one = meter()
    one.enter(1, MS)
    one.gradient(1, 2 * MS)
    one.step(3 * MS, (100, 100))
    assert one.report().up_bytes_per_s == ()


def test_a_window_begins_anew_and_becomes_statistics() -> None:
    one = meter()
    at = play(one, 4)
    one.restart()
    play(one, WINDOW_STEPS, begin_ms=at, wait_ms=6)
    measured = gather([one.report()], candidate=BASELINE, workers=1, workload=WORKLOAD)
    assert isinstance(measured, Statistics)
    assert one.num_steps == WINDOW_STEPS
    assert measured.iteration_s == pytest.approx(0.030)
    assert measured.iteration_s - measured.workload.compute_s == pytest.approx(0.006)


def test_a_clock_that_steps_is_found_out() -> None:
    for jump_ms in (-5000, 5_000_000):
        one = meter()
        at = play(one, 4)
        play(one, WINDOW_STEPS - 4, begin_ms=at + jump_ms)
        reason = gather([one.report()], candidate=BASELINE, workers=1, workload=WORKLOAD)
        assert isinstance(reason, str)
        assert "backwards" in reason or "clock stepped" in reason


def test_what_a_report_weighs() -> None:
    one = meter()
    play(one, WINDOW_STEPS)
    third = {name: (1e-6 / 3,) * len(value) for name, value in asdict(one.report()).items() if isinstance(value, tuple)}
    longest = replace(one.report(), **third)  # type: ignore[arg-type]
    assert 0.8 * Meter.report_bytes(3) < len(longest.to_json()) <= Meter.report_bytes(3)
