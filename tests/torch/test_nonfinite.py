"""Gradients that are not finite: passed, skipped or the end of the job, and then by rank, parameter and step."""

import os
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import MismatchError, NonFiniteError
from legato.testing.log import said
from tests.torch.crew import Crew


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def _init(policy: str) -> None:
    os.environ["LEGATO_NONFINITE"] = policy
    try:
        lg.init()
    finally:
        del os.environ["LEGATO_NONFINITE"]


def _train(policy: str, transport: str, value: float, bad_rank: int = 1) -> Any:
    """Four steps, in the third of which the loss of one rank is multiplied by `value`. The weights after each step and
    what was logged, or the error."""
    _init(policy)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, transport=transport, tuner="off")
    weights = []
    with said("legato.torch.scheduling.nonfinite") as lines:
        for step in range(1, 5):
            optimizer.zero_grad()
            factor = value if step == 3 and lg.rank() == bad_rank else 1.0
            (model(torch.ones(3, 4)).square().sum() * factor).backward()
            try:
                optimizer.step()
            except NonFiniteError as error:
                return str(error), error.rank, error.tensor, error.step
            lg.flush(model)
            weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    return weights, lines


WORDS = "the gradient of parameter '0.weight' (and of 3 other parameters) of rank 1 is not finite in step 3; look at"


@pytest.mark.parametrize("transport", ["native", "c10d"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_fail_names_rank_parameter_and_step_on_every_rank(crew: Crew, transport: str, value: float) -> None:
    for message, *details in crew.run(_train, "fail", transport, value):
        assert details == [1, "0.weight", 3]
        assert message.startswith(WORDS)


@pytest.mark.parametrize("transport", ["native", "c10d"])
def test_skip_leaves_the_weights_of_all_ranks_as_they_were(crew: Crew, transport: str) -> None:
    for weights, lines in crew.run(_train, "skip", transport, float("nan")):
        assert not weights[0].equal(weights[1])
        assert weights[2].equal(weights[1])
        assert not weights[3].equal(weights[2])
        assert weights[3].isfinite().all()
        assert len(lines) == 1
        assert lines[0].startswith(f"step 3 is skipped: {WORDS}")


def test_a_finite_run_is_the_same_with_every_policy(crew: Crew) -> None:
    runs = [crew.run(_train, policy, "native", 2.0) for policy in ("pass", "skip", "fail")]
    for (weights, lines), (expected, _) in zip(runs[1] + runs[2], runs[0] * 2, strict=True):
        assert lines == []
        assert all(mine.equal(theirs) for mine, theirs in zip(weights, expected, strict=True))


def test_by_default_they_pass(crew: Crew) -> None:
    for weights, lines in crew.run(_train, "pass", "native", float("nan")):
        assert lines == []
        assert weights[3].isnan().all()


def _overflow() -> Any:
    """Each rank's gradient is finite; their sum is not."""
    _init("fail")
    weight = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    lg.schedule(weight, optimizer, transport="native", tuner="off")
    (weight(torch.ones(1, 1)).sum() * 3e38).backward()
    with pytest.raises(NonFiniteError) as caught:
        optimizer.step()
    return str(caught.value), caught.value.rank


def test_a_sum_that_overflows_is_nobodys(crew: Crew) -> None:
    for message, rank in crew.run(_overflow):
        assert rank is None
        assert "'weight' is finite on every rank, but their average is not finite in step 1" in message


def _differ() -> None:
    _init("fail" if os.environ["RANK"] == "1" else "pass")
    model = net()
    lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_ranks_agree_on_the_policy(crew: Crew) -> None:
    for outcome in crew.outcomes(_differ):
        assert isinstance(outcome, MismatchError)
        assert "LEGATO_NONFINITE=fail" in str(outcome)
