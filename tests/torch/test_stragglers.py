"""A rank that is slow is named on rank 0 within ten steps, with what it is slow at; nobody is when all are alike."""

import logging
import os
import time
from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from bench.testbed import crew as hosts
from bench.testbed.launch import Launch
from bench.testbed.namespace import is_permitted
from bench.testbed.testbed import Testbed
from legato.testing.log import said
from tests.torch.crew import Crew

NUM_RANKS = 3
SLOW = 2
SLOW_FROM = 5
"""The first step in which a rank is slow: no window of steps begins there."""
NUM_STEPS = SLOW_FROM + 11
WORK_S = 0.02
LOOPS = 3_000_000
"""Several times that."""

Named = list[tuple[int, str]]
"""What rank 0 has said, and in which step."""


class Work(nn.Module):
    """A forward pass that takes a while; on the slow rank it is a loop of fixed length besides."""

    def __init__(self) -> None:
        super().__init__()
        self.loops = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(WORK_S)  # the same on every rank, however busy the machine is
        for _ in range(self.loops):
            pass
        return values


def train(num_items: int, slow_at: str, **options: Any) -> Named:
    work = Work()
    model = nn.Sequential(nn.Linear(8, 8), work, nn.Linear(8, num_items // 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    lg.schedule(model, optimizer, transport="native", **options)
    named: Named = []
    with said("legato.transports.rendezvous", logging.WARNING) as lines:
        for step in range(NUM_STEPS):
            is_slow = step >= SLOW_FROM and lg.rank() == SLOW
            work.loops = LOOPS if is_slow and slow_at == "compute" else 0
            if is_slow and slow_at == "input":
                time.sleep(4 * WORK_S)
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            named += [(step, line) for line in lines[len(named) :]]
    return named


def train_in_a_crew(slow_at: str) -> Named:
    lg.init()
    return train(10_000, slow_at)


@pytest.mark.parametrize(
    ("slow_at", "words"),
    [("compute", "ms a step computing, and the others "), ("input", "ms a step on data, before its first layer, and ")],
)
def test_who_computes_or_loads_data_for_longer_is_named(crew: Crew, slow_at: str, words: str) -> None:
    first, *others = crew.run(train_in_a_crew, slow_at, size=NUM_RANKS)
    [(step, line)] = first
    assert line.startswith(f"rank {SLOW} is the slowest: it spends ")
    assert words in line
    assert "backups=1" in line
    assert SLOW_FROM < step <= SLOW_FROM + 10
    assert others == [[], []], "only rank 0 says so"


def test_nobody_is_named_when_all_are_alike(crew: Crew) -> None:
    assert crew.run(train_in_a_crew, "nothing", size=NUM_RANKS) == [[]] * NUM_RANKS


def train_on_a_host(station: hosts.Station, launch: Launch) -> Named:
    torch.set_num_threads(1)
    os.environ.update(launch.environment(station.rank))
    lg.init()
    try:
        return train(100_000, "nothing", tuner="off")
    finally:
        lg.shutdown()


@pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")
@pytest.mark.usefixtures("forked_hosts")
def test_who_has_a_slow_link_is_named() -> None:
    with Testbed(hosts=NUM_RANKS, gbps=0.4) as testbed:
        testbed.set_rate(0.02, SLOW)
        launch = Launch(num_workers=NUM_RANKS, conductor=testbed.address(0))
        first, *others = hosts.run(testbed, range(NUM_RANKS), train_on_a_host, launch)
    [(step, line)] = first
    assert line.startswith(f"rank {SLOW} is the slowest: its link ")
    assert step <= 10
    assert others == [[], []]
