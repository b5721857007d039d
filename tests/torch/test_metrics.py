"""Norm and noise scale of gradients whose answers are known."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from legato.errors import InputError, LegatoError
from legato.torch.scheduling.metrics import Metrics, noise_scale
from tests.torch.cases import schedule_over
from tests.torch.crew import Crew

SYSTEMS = ["native", "c10d", "c10d:rsag"]
DECAY = 0.5


class Slope(nn.Module):
    """Its gradients are what it is given."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        used = zip(self.weights, gradients, strict=False)
        return torch.stack([(weight * gradient).sum() for weight, gradient in used]).sum()


def gradients_of(rank: int, step: int) -> list[torch.Tensor]:
    """Of each rank in each step; the last of three tensors has one on some ranks only."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    sizes = (3, 5, 2) if (rank + step) % 2 else (3, 5)
    return [1.0 + torch.randn(size, generator=generator) for size in sizes]


def watch(system: str, limit: float) -> list[Metrics]:
    lg.init()
    dist.init_process_group("gloo")
    model = Slope(3, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule_over(system, model, optimizer)
    seen = []
    for step in range(5):
        if step == 1:
            lg.watch_gradients(model, batch_size=4, decay=DECAY)
        optimizer.zero_grad()
        loss = model(gradients_of(lg.rank(), step))
        if step == 3 and lg.rank() == 1:
            loss = loss * torch.inf
        loss.backward()
        if limit:
            lg.clip_grad_norm_(model, limit)
        if step != 3:
            optimizer.step()
        if step == 3:
            for parameter in model.parameters():  # skipped, as a gradient scaler does
                assert parameter.grad is not None
                parameter.grad.isfinite()
        elif step > 1:
            seen.append(lg.metrics(model))
    return seen


def expected(size: int, steps: list[int]) -> Metrics:
    own = mean = norm = 0.0
    for step in steps:
        by_rank = [
            torch.cat([*gradients, torch.zeros(10)])[:10].double()
            for gradients in (gradients_of(rank, step) for rank in range(size))
        ]
        small = sum(each.square().sum().item() for each in by_rank) / size
        big = torch.stack(by_rank).mean(0).square().sum().item()
        own, mean = DECAY * own + (1 - DECAY) * small, DECAY * mean + (1 - DECAY) * big
        norm = math.sqrt(big)
    signal, noise = (size * mean - own) / (size - 1), (own - mean) / (1 / 4 - 1 / (4 * size))
    return Metrics(num_steps=len(steps), gradient_norm=norm, gradient_noise_scale=noise / signal)


@pytest.mark.parametrize("limit", [0.0, 0.1])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("system", SYSTEMS)
def test_metrics_are_those_of_known_gradients(crew: Crew, system: str, size: int, limit: float) -> None:
    """Clipping does not change them, and neither does a step with an overflow, which counts as one."""
    first, *others = crew.run(watch, system, limit, size=size)
    assert others == [first] * (size - 1)
    after_two, after_four = first
    for seen, steps in ((after_two, [1, 2]), (after_four, [1, 2, 4])):
        wanted = expected(size, steps)
        assert seen.gradient_norm == pytest.approx(wanted.gradient_norm, rel=1e-6)
        assert seen.gradient_noise_scale == pytest.approx(wanted.gradient_noise_scale, rel=1e-5)
    assert (after_two.num_steps, after_four.num_steps) == (2, 4)


def estimate(num_items: int, batch_size: int, sigma: float) -> float:
    """Gradients of samples are 1 + N(0, σ²) in each of `num_items` parameters."""
    lg.init()
    model = Slope(num_items)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport="native", tuner="off")
    lg.watch_gradients(model, batch_size=batch_size, decay=0.99)
    generator = torch.Generator().manual_seed(lg.rank())
    for _ in range(100):
        optimizer.zero_grad()
        samples = 1.0 + sigma * torch.randn(batch_size, num_items, generator=generator)
        (sum(model([sample]) for sample in samples) / batch_size).backward()
        optimizer.step()
    return lg.metrics(model).gradient_noise_scale


def test_the_noise_scale_of_a_known_covariance(crew: Crew) -> None:
    """tr Σ / |G|² = σ²·items / items, whatever the batch."""
    for scale in crew.run(estimate, 500, 8, 5.0):
        assert scale == pytest.approx(25.0, rel=0.1)


def test_without_noise_it_is_zero_and_without_signal_infinite() -> None:
    assert noise_scale(4.0, 4.0, num_ranks=4, batch_size=8) == 0.0
    assert noise_scale(4.0, 1.0, num_ranks=4, batch_size=8) == math.inf
    assert math.isnan(noise_scale(0.0, 0.0, num_ranks=4, batch_size=8))


def ask_wrongly() -> None:
    lg.init()
    model = Slope(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport="native")
    with pytest.raises(LegatoError, match=r"call legato\.torch\.watch_gradients first"):
        lg.metrics(model)
    with pytest.raises(InputError, match="batch_size=0 must be more than 0"):
        lg.watch_gradients(model, batch_size=0)
    with pytest.raises(InputError, match="accepted is 0 <= decay < 1"):
        lg.watch_gradients(model, decay=1.0)
    lg.watch_gradients(model)
    nothing = lg.metrics(model)
    assert nothing.num_steps == 0
    assert math.isnan(nothing.gradient_norm)
    assert math.isnan(nothing.gradient_noise_scale)


def test_what_cannot_be_told_is_refused(crew: Crew) -> None:
    crew.run(ask_wrongly)
