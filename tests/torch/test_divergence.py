"""Ranks that train together hold the same weights, to the last bit; where they do not, they stop and say so."""

import os
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import DivergedError
from legato.torch.scheduling.divergence import digest
from tests.torch.crew import Crew

TRANSPORTS = ["native", "c10d"]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def nudge(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        first = parameter.view(-1)[:1]
        first.copy_(torch.nextafter(first, first + 1))


def _train(transport: str, nudged: int | None, check: str | None, closure: bool = False) -> Any:
    """Six steps, before one of which a weight of rank 1 changes by its last bit; the error that stopped them, if any.

    In pieces, so that the job ends as after any training, with no thread left behind.
    """
    if check is not None:
        os.environ["LEGATO_CHECK"] = check
    try:
        lg.init()
    finally:
        os.environ.pop("LEGATO_CHECK", None)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lg.schedule(model, optimizer, transport=transport)
    for step in range(1, 7):
        if step == nudged:
            lg.flush(model)
            if lg.rank() == 1:
                nudge(model.get_parameter("2.weight"))

        def evaluate() -> Any:
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).square().sum()
            loss.backward()
            return loss

        try:
            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
        except DivergedError as error:
            return str(error), error.tensor, error.rank, error.step
    return None


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("nudged", "check"), [(1, None), (3, None), (5, "1")])
def test_a_weight_that_differs_in_its_last_bit_stops_all_ranks(
    crew: Crew, transport: str, nudged: int, check: str | None
) -> None:
    for message, *details in crew.run(_train, transport, nudged, check):
        assert details == ["2.weight", 1, nudged - 1]
        for part in ("'2.weight'", "rank 1", "rank 0", f"after {nudged - 1} step"):
            assert part in message


@pytest.mark.parametrize(("nudged", "check"), [(None, None), (None, "1"), (5, None), (1, "0")])
def test_equal_weights_train_on_and_later_steps_are_compared_on_request(
    crew: Crew, nudged: int | None, check: str | None
) -> None:
    assert crew.run(_train, "native", nudged, check) == [None, None]


def test_a_step_with_a_closure_is_compared_as_well(crew: Crew) -> None:
    for _, *details in crew.run(_train, "native", 2, None, True):
        assert details == ["2.weight", 1, 2]


def _another_rate() -> None:
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    if lg.rank() == 1:
        optimizer.param_groups[0]["lr"] = 0.2
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()


def test_ranks_that_step_differently_are_found_out_in_the_third_step(crew: Crew) -> None:
    for outcome in crew.outcomes(_another_rate):
        assert isinstance(outcome, DivergedError)
        assert outcome.step == 2


def _alone() -> None:
    """Ranks that step alone may differ, until they meet."""
    lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, local_steps=4)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.full((3, 4), float(lg.rank()))).square().sum().backward()
        optimizer.step()


def test_ranks_that_step_alone_are_not_compared(crew: Crew) -> None:
    assert crew.run(_alone) == [None, None]


def _nudged(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    value.view(-1)[-1:].view(torch.int8)[0] ^= 1
    return value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (5,), (1027,), (4, 3), (40, 3, 5, 5)])
def test_a_digest_tells_a_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.randn(shape).to(dtype)
    assert digest(value) == digest(value.clone())
    assert digest(value) != digest(_nudged(value))


def test_a_digest_tells_places_but_not_addresses() -> None:
    value = torch.randn(8, 256)
    assert digest(value) != digest(value.flip(0))
    everything = torch.cat([torch.zeros(1), value.view(-1)])
    assert digest(value) == digest(everything[1:])
    assert digest(torch.randn(0, 3)) == 0
    for place in range(0, value.numel(), 255):
        other = value.clone()
        other.view(-1)[place].neg_()
        assert digest(value) != digest(other)


def _format() -> None:
    """The order of elements in memory is each rank's own affair."""
    lg.init()
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    if lg.rank() == 1:
        model.to(memory_format=torch.channels_last)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 3, 4, 4)).square().sum().backward()
        optimizer.step()


def test_another_order_in_memory_is_no_difference(crew: Crew) -> None:
    assert crew.run(_format) == [None, None]
