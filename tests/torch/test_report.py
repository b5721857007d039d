"""The report of real training: what it calls exposed is what a benchmark calls so, the step less the computation."""

import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import legato.torch as lg
from bench.testbed.pacing import pace_all
from legato.observe.report import analyse, read
from legato.tuning.twin.forecast import forecast
from tests.torch.crew import Crew
from tests.torch.test_timeline import environment

_BYTES = 200_000
"""Of a layer: few, over slow links, so that what is not a layer's own time is small beside what is waited for."""
_NUM_LAYERS = 4
_STEPS = 5
_WARM_UP = 4
"""Steps before; ahead of two of them weights are compared, which hides what is waited for (divergence.py)."""
_BYTES_PER_S = 2e6


class Clock:
    """What layers have computed so far, by their own clock."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def spend(self, seconds: float) -> None:
        begin_s = time.perf_counter()
        time.sleep(seconds)
        self.spent_s += time.perf_counter() - begin_s


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carried: torch.Tensor, weight: torch.Tensor, clock: Clock) -> torch.Tensor:
        ctx.clock, ctx.size = clock, weight.numel()
        clock.spend(0.005)
        return carried.clone()

    @staticmethod
    def backward(ctx: Any, carried: torch.Tensor) -> Any:
        ctx.clock.spend(0.01)
        return carried, torch.ones(ctx.size), None


class Layer(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.weight = nn.Parameter(torch.zeros(_BYTES // 4))

    def forward(self, carried: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(carried, self.weight, self.clock)  # type: ignore[no-untyped-call]  # torch's


class Measured(NamedTuple):
    steps_s: list[float]
    computed_s: list[float]


def trained(path: str) -> Measured:
    with environment(LEGATO_SHARED_MEMORY="0"):
        lg.init()
    clock = Clock()
    model = nn.Sequential(*(Layer(clock) for _ in range(_NUM_LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = lg.schedule(model, optimizer, transport="native", tuner="off")
    assert pace_all(_BYTES_PER_S)
    measured = Measured([], [])
    for step in range(_WARM_UP + _STEPS + 1):
        if step == _WARM_UP:
            lg.start_timeline(path)
        begin_s, before_s = time.perf_counter(), clock.spent_s
        optimizer.zero_grad()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        optimizer.step()
        if step > _WARM_UP:  # the first step that is recorded has no predecessor in the timeline
            measured.steps_s.append(time.perf_counter() - begin_s)
            measured.computed_s.append(clock.spent_s - before_s)
    lg.shutdown()
    return measured


def test_exposed_communication_is_the_benchmarks_within_five_percent(crew: Crew, tmp_path: Path) -> None:
    ranks: list[Measured] = crew.run(trained, str(tmp_path / "run.json"))
    recording = read([tmp_path / "run.json"])
    analysis = analyse(recording)
    for rank, measured in enumerate(ranks):
        steps = [step for step in analysis.whole_steps if step.rank == rank]
        assert len(steps) == _STEPS
        exposed_s = median(a - b for a, b in zip(measured.steps_s, measured.computed_s, strict=True))
        assert exposed_s > 0.1
        assert median(step.exposed_ns for step in steps) * 1e-9 == pytest.approx(exposed_s, rel=0.05)
        assert median(step.ns for step in steps) * 1e-9 == pytest.approx(median(measured.steps_s), rel=0.05)
    found = forecast(recording, analysis)
    assert analysis.summary is not None
    assert found.outlooks[0].change.startswith("T*")
    assert found.outlooks[0].step_s <= analysis.summary.step_s
