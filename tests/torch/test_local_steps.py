"""Ranks that step alone and meet every few steps, with and without an outer optimizer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.core import Plan
from legato.errors import InputError, LegatoError, MismatchError
from legato.exchange.measure import Measure
from legato.torch.relaxed.local_steps import LocalSteps
from legato.torch.sync.synchronizer import Slot
from tests.torch.crew import Crew

NUM_STEPS = 10
NESTEROV = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
Outer = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()


def weights(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def trained(options: dict[str, Any]) -> list[list[float]]:
    """The weights after every step, and after the end."""
    job = lg.init()
    model = net()
    if job.rank:
        nn.init.zeros_(next(model.parameters()))  # becomes rank 0's
    optimizer = optimizer_of(model)
    lg.schedule(model, optimizer, **options)
    history = []
    for step in range(NUM_STEPS):
        take_step(model, optimizer, step, job.rank)
        history.append(weights(model))
    lg.unschedule(model)
    return [*history, weights(model)]


def by_hand(size: int, local_steps: int, outer: Outer | None) -> list[list[list[float]]]:
    """The same in one process, by rank."""
    models = [net() for _ in range(size)]
    optimizers = [optimizer_of(model) for model in models]
    start = [parameter.detach().clone() for parameter in models[0].parameters()]
    outer_optimizer = None if outer is None else outer(start)
    histories: list[list[list[float]]] = [[] for _ in range(size)]

    def meet() -> None:
        changes = [[p.detach() - s for p, s in zip(m.parameters(), start, strict=True)] for m in models]
        for index, each in enumerate(start):
            change = torch.stack([change[index] for change in changes]).sum(0) / size
            if outer_optimizer is None:
                each.add_(change)
            else:
                each.grad = -change
        if outer_optimizer is not None:
            outer_optimizer.step()
        for model in models:
            for parameter, each in zip(model.parameters(), start, strict=True):
                parameter.data.copy_(each)

    for step in range(NUM_STEPS):
        for rank in range(size):
            take_step(models[rank], optimizers[rank], step, rank)
        if (step + 1) % local_steps == 0:
            meet()
        for rank, model in enumerate(models):
            histories[rank].append(weights(model))
    if NUM_STEPS % local_steps:
        meet()
    return [[*history, weights(model)] for history, model in zip(histories, models, strict=True)]


@pytest.mark.parametrize("outer", [None, NESTEROV], ids=["averaged", "nesterov"])
@pytest.mark.parametrize("local_steps", [4, 5], ids=["with a rest", "without"])
def test_equals_the_same_by_hand_to_the_last_bit(crew: Crew, local_steps: int, outer: Outer | None) -> None:
    histories = crew.run(trained, {"local_steps": local_steps, "outer": outer})
    assert histories == by_hand(2, local_steps, outer)
    assert histories[0][-1] == histories[1][-1]
    assert histories[0][0] != histories[1][0], "ranks must have trained alone"


def test_over_process_groups(crew: Crew) -> None:
    histories = crew.run(trained, {"local_steps": 4, "transport": "c10d"})
    assert histories == by_hand(2, 4, None)


def test_changes_may_travel_compressed(crew: Crew) -> None:
    exact, _ = by_hand(2, 5, None)
    histories = crew.run(trained, {"local_steps": 5, "compression": "fp16+ef", "min_compress_bytes": 0})
    assert histories[0][-1] == histories[1][-1] != exact[-1]
    assert histories[0][-1] == pytest.approx(exact[-1], abs=1e-3)


class Alone:
    """A synchronizer of one rank, which notes what it is given."""

    def __init__(self) -> None:
        self.submitted: list[torch.Tensor] = []

    def submit(self, index: int, gradient: torch.Tensor | None) -> bool:
        assert index == 0
        assert gradient is not None
        self.submitted.append(gradient)
        return False

    def poll(self, index: int) -> bool:
        return index == 0

    def wait(self, index: int) -> bool:
        return index == 0

    def arrives_in_place(self, index: int) -> bool:
        raise AssertionError(index)

    def wait_first(self, index: int, num_items: int) -> int:
        raise AssertionError(index, num_items)

    def result(self, index: int) -> torch.Tensor:
        return self.submitted[-1 - index]

    def set_measured(self) -> None:
        raise AssertionError("nobody clips what is averaged now and then")

    def is_measured(self, index: int) -> bool:
        raise AssertionError(index)

    def measure(self, index: int) -> Measure:
        raise AssertionError(index)

    def measure_here(self, index: int, average: torch.Tensor) -> Measure:
        raise AssertionError(index, average)

    def confirm(self) -> None:
        pass

    def set_order(self, order: Sequence[int]) -> None:
        assert order

    @property
    def plan(self) -> Plan:
        raise AssertionError("what is averaged now and then follows no plan")

    def close(self) -> None:
        pass


def test_nothing_is_sent_between_two_meetings() -> None:
    weight, synchronizer = nn.Parameter(torch.zeros(1)), Alone()
    exchange = LocalSteps(synchronizer, [Slot("weight", weight)], 3, None)
    sent = []
    for step in range(7):
        with torch.no_grad():
            weight.add_(step)
        exchange.after_step()
        sent.append(len(synchronizer.submitted))
    exchange.close()
    assert sent == [0, 0, 1, 1, 1, 2, 2]
    assert [change.item() for change in synchronizer.submitted] == [0 + 1 + 2, 3 + 4 + 5, 6]
    assert weight.item() == 21


def what_a_script_does() -> tuple[bool, bool]:
    lg.init()
    model = net()
    optimizer = optimizer_of(model)
    lg.schedule(model, optimizer, local_steps=2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    with lg.no_sync(model):
        model(torch.ones(1, 4)).sum().backward()
    lg.flush(model)
    optimizer.step(lambda: model(torch.ones(1, 4)).sum())
    scheduler.step()
    take_step(model, optimizer, 0, lg.rank())
    keys = set(model.state_dict()) == set(net().state_dict())
    lg.unschedule(model)
    with pytest.raises(LegatoError, match="this model is not scheduled"):
        lg.flush(model)
    return keys, "step" in vars(optimizer)


def test_what_else_a_script_does(crew: Crew) -> None:
    assert crew.run(what_a_script_does) == [(True, False)] * 2


def refusal(options: Sequence[dict[str, Any]]) -> str:
    job = lg.init()
    model = net()
    with pytest.raises((InputError, MismatchError)) as error:
        lg.schedule(model, optimizer_of(model), **options[job.rank])
    return str(error.value)


def not_an_optimizer(parameters: Any) -> Any:
    return list(parameters)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([{"local_steps": 0}] * 2, "local_steps is 0; accepted is a whole number from 1 on"),
        ([{"local_steps": 2.5}] * 2, "local_steps is 2.5; accepted is a whole number from 1 on"),
        ([{"outer": NESTEROV}] * 2, "outer steps what local_steps have changed; give local_steps, 2 or more"),
        (
            [{"local_steps": 2, "outer": not_an_optimizer}] * 2,
            "outer makes a list; accepted is what makes a torch.optim.Optimizer",
        ),
        (
            [{"local_steps": 8}, {}],
            "schedule: rank 0 says local_steps=8, rank 1 says synchronous",
        ),
        (
            [{"local_steps": 8}, {"local_steps": 8, "outer": NESTEROV}],
            "schedule: rank 0 says local_steps=8, rank 1 says local_steps=8, outer=SGD(",
        ),
    ],
)
def test_bad_choices_are_said_on_every_rank(crew: Crew, options: list[dict[str, Any]], why: str) -> None:
    for message in crew.run(refusal, options):
        assert message.startswith(why)
