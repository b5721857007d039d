"""step(closure): where the closure comes first and once, updates wait for the next forward pass inside it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.torch.scheduling.hooks import Schedule
from tests.torch.crew import Crew
from tests.torch.test_schedule import data, net, scheduled, weights

STEPS = 6


def closure_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor], calls: list[int]
) -> Callable[[], torch.Tensor]:
    """The loss over some batches, each with its share, and its gradients."""

    def closure() -> torch.Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = sum((model(batch).square().sum() / len(batches) for batch in batches), torch.zeros(()))
        loss.backward()
        return loss

    return closure


def by_hand(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[torch.Tensor, int]:
    """(weights, number of evaluations) of one process with the batches of all ranks."""
    torch.manual_seed(0)
    model = net()
    optimizer = make(model.parameters())
    calls: list[int] = []
    for step in range(STEPS):
        generators = [torch.Generator().manual_seed(100 * step + rank) for rank in range(lg.size())]
        batches = [torch.randn(3, 4, generator=generator) for generator in generators]
        optimizer.step(closure_of(model, optimizer, batches, calls))  # type: ignore[arg-type]
    return weights(model), len(calls)


def train(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[list[bool], float, bool, bool]:
    """(whether updates are due after each step, how far from one process's weights, as many evaluations, losses)."""
    model, optimizer = scheduled(make)
    calls: list[int] = []
    due, has_loss = [], True
    for step in range(STEPS):
        result = optimizer.step(closure_of(model, optimizer, [data(step)], calls))  # type: ignore[arg-type]
        has_loss = has_loss and isinstance(result, torch.Tensor)
        due.append(any(each.due is not None for each in Schedule.of(model)._parameters.all))
    expected, num_calls = by_hand(make)
    return due, (weights(model) - expected).abs().max().item(), len(calls) == num_calls, has_loss


def sgd(parameters: Any, **_: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters: Any, **_: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_updates_wait_for_the_forward_pass_in_the_next_closure(crew: Crew, make: Any) -> None:
    for due, difference, same_calls, has_loss in crew.run(train, make):
        # The first step shows that the closure comes first, the second that the optimizer can be divided.
        assert due == [False, False, *[True] * (STEPS - 2)]
        assert difference < 1e-6
        assert same_calls
        assert has_loss


class Sharp(torch.optim.SGD):
    """Evaluates the model once, but where it has moved to: as sharpness-aware optimizers do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for parameter in parameters:
            parameter.data.add_(0.01)
        with torch.enable_grad():
            loss = closure()
        for parameter in parameters:
            parameter.data.sub_(0.01)
        super().step()
        return loss


class Twice(torch.optim.SGD):
    """Evaluates the model again after its update."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if closure is not None:
            with torch.enable_grad():
                closure()
            super().step()
        return loss


def lbfgs(parameters: Any, **_: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)


def lbfgs_of_one_evaluation(parameters: Any, **_: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.01, max_iter=1)


def sharp(parameters: Any, **_: Any) -> torch.optim.Optimizer:
    return Sharp(parameters, lr=0.05)


def twice(parameters: Any, **_: Any) -> torch.optim.Optimizer:
    return Twice(parameters, lr=0.05)


@pytest.mark.parametrize("make", [lbfgs, lbfgs_of_one_evaluation, sharp, twice])
def test_an_optimizer_that_evaluates_in_a_way_of_its_own_is_recognised(crew: Crew, make: Any) -> None:
    for due, difference, same_calls, has_loss in crew.run(train, make):
        assert due == [False] * STEPS
        assert difference < 1e-5
        assert same_calls
        assert has_loss


def with_hook() -> tuple[list[str], bool | None]:
    """The order of a hook and the closure in each step, and whether updates may come later."""
    model, optimizer = scheduled()
    order: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: order.append("hook"))
    for step in range(3):
        closure = closure_of(model, optimizer, [data(step)], [])

        def noting(closure: Callable[[], torch.Tensor] = closure) -> torch.Tensor:
            order.append("closure")
            return closure()

        optimizer.step(noting)  # type: ignore[arg-type]
    return order, Schedule.of(model)._steps._closure_first


def test_a_step_hook_still_comes_before_the_closure(crew: Crew) -> None:
    assert crew.run(with_hook) == [(["hook", "closure"] * 3, False)] * 2
