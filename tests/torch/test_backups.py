"""Scheduled models that do not wait for the slowest rank."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import InputError, LegatoError, MismatchError
from tests.torch.crew import Crew

NUM_RANKS = 3
SLOW = 1


class Slow(torch.autograd.Function):
    """A backward pass that begins when everybody else has got on without this rank."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, wait: Any) -> torch.Tensor:
        ctx.wait = wait
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.wait()
        return gradient, None


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * step + rank))


def weights(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def train(num_steps: int) -> tuple[list[tuple[int, ...]], list[float], list[str]]:
    """One rank computes its gradients only when the others have finished the step: who was left out, the weights, and
    what was logged."""
    job = lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lg.schedule(model, optimizer, backups=1)
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("legato.torch.relaxed.backups").addHandler(handler)
    logging.getLogger("legato.torch.relaxed.backups").setLevel(logging.INFO)
    left_out = []
    for step in range(num_steps):
        optimizer.zero_grad()
        outputs = model(inputs(step, job.rank))
        if job.rank == SLOW:
            outputs = Slow.apply(outputs, job.group.barrier_async().wait)  # type: ignore[no-untyped-call]
        outputs.square().sum().backward()
        optimizer.step()
        lg.flush(model)
        if job.rank != SLOW:
            job.group.barrier()
        left_out.append(lg.left_out(model))
    logging.getLogger("legato.torch.relaxed.backups").removeHandler(handler)
    return left_out, weights(model), records


def by_hand(num_steps: int) -> list[float]:
    """The same without the slow rank."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ranks = [rank for rank in range(NUM_RANKS) if rank != SLOW]
    for step in range(num_steps):
        optimizer.zero_grad()
        gradients = []
        for rank in ranks:
            gradients.append(torch.autograd.grad(model(inputs(step, rank)).square().sum(), list(model.parameters())))
        for parameter, one, other in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = (one + other) / len(ranks)
        optimizer.step()
    return weights(model)


def test_steps_go_on_without_the_slow_rank_and_say_so(crew: Crew) -> None:
    expected = by_hand(5)
    for left_out, ended_with, records in crew.run(train, 5, size=NUM_RANKS):
        assert left_out == [(SLOW,)] * 5
        assert ended_with == expected
        assert records == [
            "rank 1 was too slow for step 0, which went on without it: 1 so far",
            "rank 1 was too slow for step 1, which went on without it: 2 so far",
            "rank 1 was too slow for step 3, which went on without it: 4 so far",
        ]


def free_running(num_steps: int, compression: str | None) -> list[float]:
    """Nobody is slow on purpose: whoever is last is left out."""
    job = lg.init()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, backups=2, compression=compression)
    for step in range(num_steps):
        optimizer.zero_grad()
        model(inputs(step, job.rank)).square().sum().backward()
        optimizer.step()
    lg.flush(model)
    return weights(model)


@pytest.mark.parametrize("compression", [None, "fp16"])
def test_weights_stay_equal(crew: Crew, compression: str | None) -> None:
    outcomes = crew.run(free_running, 30, compression, size=4)
    assert all(outcome == outcomes[0] for outcome in outcomes)


def refusal(options: list[dict[str, Any]], error_type: type[Exception]) -> str:
    job = lg.init()
    model = net()
    with pytest.raises(error_type) as error:
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), **options[job.rank])
    with pytest.raises(LegatoError, match="this model has no backups"):
        lg.left_out(nn.Linear(1, 1))
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "error_type", "why"),
    [
        ([{"backups": -1}] * 2, InputError, "backups is -1; accepted is a whole number from 0 on"),
        ([{"backups": 2}] * 2, InputError, "backups is 2; accepted is 0 to 1 in a job of 2"),
        ([{"backups": 1, "staleness": 2}] * 2, InputError, "backups=1 are for gradients, but with staleness=2"),
        ([{"backups": 1, "local_steps": 2}] * 2, InputError, "backups=1 are for gradients"),
        ([{"backups": 1, "transport": "c10d"}] * 2, InputError, "backups=1 need transport native"),
        ([{"backups": 1, "compression": "topk:0.1"}] * 2, InputError, "backups=1 do not go with codecs"),
        (
            [{"backups": 1}, {}],
            MismatchError,
            "schedule: rank 0 says backups=1, rank 1 says synchronous",
        ),
    ],
)
def test_bad_choices_are_said_on_every_rank(
    crew: Crew, options: list[dict[str, Any]], error_type: type[Exception], why: str
) -> None:
    for message in crew.run(refusal, options, error_type):
        assert message.startswith(why)


def sparse_is_refused() -> str:
    lg.init()
    model = nn.Sequential(nn.Embedding(10, 2, sparse=True))
    with pytest.raises(InputError) as error:
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), backups=1)
    return str(error.value)


def test_sparse_gradients_have_no_backups(crew: Crew) -> None:
    for message in crew.run(sparse_is_refused):
        assert message == "backups=1 do not go with sparse gradients; use sparse=False"
