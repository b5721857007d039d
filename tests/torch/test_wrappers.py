"""Others that average or shard a model, around one that is scheduled."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg
from legato.errors import InputError
from tests.torch.crew import Crew


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def _wrap(how: str, transport: str, wrapper: str) -> None:
    dist.init_process_group("gloo")
    lg.init()
    wrap: Any = DistributedDataParallel if wrapper == "torch" else lg.DistributedDataParallel
    model: Any = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if how == "the wrapper":
        model = wrap(model)
        lg.schedule(model, optimizer, transport=transport)
    elif how == "inside":
        model = wrap(model)
        lg.schedule(model.module, optimizer, transport=transport)
    else:
        lg.schedule(model, optimizer, transport=transport)
        model = wrap(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("transport", ["native", "c10d"])
@pytest.mark.parametrize("how", ["the wrapper", "inside", "around"])
def test_torchs_ddp_is_refused_in_any_order(crew: Crew, how: str, transport: str) -> None:
    for outcome in crew.outcomes(_wrap, how, transport, "torch"):
        assert isinstance(outcome, InputError)
        assert "torch.nn.parallel.distributed.DistributedDataParallel" in str(outcome)
        assert "ddp_hook" in str(outcome)


@pytest.mark.parametrize("how", ["the wrapper", "inside", "around"])
def test_our_own_ddp_is_refused_in_any_order(crew: Crew, how: str) -> None:
    for outcome in crew.outcomes(_wrap, how, "native", "legato"):
        assert isinstance(outcome, InputError)
        assert "DistributedDataParallel" in str(outcome)


def _beside() -> None:
    """Another model under torch's DDP is its own affair, also where it calls ours."""
    dist.init_process_group("gloo")
    lg.init()
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.own(model(x).detach())

    caller = DistributedDataParallel(Caller())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        caller(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def test_another_model_may_have_torchs_ddp(crew: Crew) -> None:
    assert crew.run(_beside) == [None, None]
