"""The emulated accelerator: what holds it up, and what does not."""

import time

import pytest

pytest.importorskip("torch")

import torch

from bench import sleeper
from bench.sleeper import LAG_S, Device, sleeping_model, step_times_s
from legato.sim.zoo import workload


class Clock:
    """A host's time, and how much of it the host ran or stood in line for a processor."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.busy_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def be_busy(self, seconds: float) -> None:
        self.now_s += seconds
        self.busy_s += seconds

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sleeper, "time", clock)
    monkeypatch.setattr(Device, "_moment", lambda _: sleeper._Moment(clock.now_s, clock.busy_s))
    return clock


def test_a_host_that_waits_holds_it_up_and_a_busy_one_does_not(clock: Clock) -> None:
    device = Device()
    device.spend(0.05)
    clock.be_busy(0.02)
    device.spend(0.05)
    assert clock.now_s == pytest.approx(100.10)
    clock.sleep(0.03)  # for a sum, for example
    device.spend(0.05)
    assert clock.now_s == pytest.approx(100.18)


def test_what_a_host_lags_behind_is_no_time_saved_when_it_waits(clock: Clock) -> None:
    device = Device()
    device.spend(0.05)
    clock.be_busy(0.08)
    device.spend(0.05)  # is over already when the host comes to it
    assert clock.now_s == pytest.approx(100.13)
    clock.sleep(0.03)
    device.spend(0.05)
    assert clock.now_s == pytest.approx(100.13 + 0.03 + 0.05)


def test_late_wake_ups_do_not_add_up(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "sleep", lambda seconds: clock.be_busy(seconds + 0.001))
    device = Device()
    for _ in range(50):
        device.spend(0.01)
    assert clock.now_s == pytest.approx(100.50, abs=0.002)


def test_a_lag_is_bounded(clock: Clock) -> None:
    device = Device()
    for _ in range(20):
        clock.be_busy(0.02)
        device.spend(0.01)
    assert clock.now_s == pytest.approx(100.40)
    # It lags by so much at most: no more of it can be caught up.
    for _ in range(50):
        device.spend(0.01)
    assert clock.now_s == pytest.approx(100.40 - LAG_S + 0.01 + 50 * 0.01)
    clock.be_busy(1.0)
    device.begin()
    device.spend(0.01)
    assert clock.now_s == pytest.approx(100.40 - LAG_S + 0.01 + 50 * 0.01 + 1.0 + 0.01)


def test_a_step_takes_as_long_as_its_layers() -> None:
    task = workload("alexnet").scaled(bytes_by=1e-4)
    model = sleeping_model(task, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    begin_s = time.monotonic()
    assert len(step_times_s(model, optimizer, 3)) == 3
    assert time.monotonic() - begin_s >= 4 * task.compute_s  # and one that fills the pipe
