"""Who takes over rank 0's weights and optimizer state when an epoch begins: ranks as threads."""

from collections.abc import Collection

import pytest
import torch
from torch import nn

from legato.core.shards import Deployment
from legato.testing.native_job import job_configs
from legato.testing.ranks import run_ranks
from legato.torch.sync.broadcast import Handover
from legato.transports.native.group import NativeGroup


def trained(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Weights, a buffer, and moments of their own."""
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(3, 2), norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=value)
    for parameter in model.parameters():
        parameter.data.fill_(value)
        parameter.grad = torch.full_like(parameter, value)
    optimizer.step()
    assert norm.running_mean is not None
    norm.running_mean.fill_(value)
    return model, optimizer


def words_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    return repr((model.state_dict(), optimizer.state_dict()))


@pytest.mark.parametrize("newcomers", [(), (2,), (1, 2)], ids=["nobody", "one", "two"])
def test_newcomers_take_what_rank_0_has_and_the_others_keep_theirs(newcomers: Collection[int]) -> None:
    configs = job_configs(Deployment(num_workers=3))

    def body(rank: int) -> tuple[bool, str, str]:
        model, optimizer = trained(1.0 + rank)
        handover = Handover("start", model, optimizer)
        handover._lacks = rank in newcomers
        own = words_of(model, optimizer)
        with NativeGroup(configs[rank]) as group:
            has_given = handover.meet(group)
        return has_given, own, words_of(model, optimizer)

    results = run_ranks(3, body)
    for rank, (has_given, own, now) in enumerate(results):
        assert has_given == bool(newcomers)
        assert now == (results[0][1] if rank in newcomers else own)


def test_where_a_job_begins_everybody_starts_from_rank_0() -> None:
    configs = job_configs(Deployment(num_workers=2))

    def body(rank: int) -> tuple[bool, str, bool]:
        model, optimizer = trained(1.0 + rank)
        handover = Handover("start", model, optimizer)
        with NativeGroup(configs[rank]) as group:
            has_given = handover.meet(group)
            found = words_of(model, optimizer)
            return has_given, found, handover.meet(group)

    first, second = run_ranks(2, body)
    assert first == second
    assert (first[0], first[2]) == (True, False)
