"""Ranks that train asynchronously: what they exchange, how far apart they get, and that they end together."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import legato.horovod.torch as horovod
import legato.torch as lg
from legato.core.shards import Deployment
from legato.errors import InputError, MismatchError
from legato.testing.native_job import job_configs, run_job
from legato.torch.relaxed.asynchronous import Asynchronous
from legato.torch.sync.synchronizer import Slot
from legato.transports.native.group import NativeGroup
from tests.torch.crew import Crew

NUM_RANKS = 3


class Watch:
    """Who has taken how many steps, and how far apart they have been seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_steps = [0] * NUM_RANKS
        self.furthest = 0

    def stepped(self, rank: int) -> None:
        with self._lock:
            self._num_steps[rank] += 1

    def finished(self, rank: int) -> None:
        """What this rank has taken is over: it may begin the next step."""
        with self._lock:
            self.furthest = max(self.furthest, self._num_steps[rank] - min(self._num_steps))

    def ended(self, rank: int) -> None:
        with self._lock:
            self._num_steps[rank] = 10**6


delays = st.lists(
    st.lists(st.sampled_from([0, 0, 1, 4]), min_size=12, max_size=12), min_size=NUM_RANKS, max_size=NUM_RANKS
)


@settings(max_examples=12, deadline=None)
@given(staleness=st.integers(1, 4), delays_ms=delays, slowest=st.integers(0, NUM_RANKS - 1))
def test_nobody_is_further_ahead_than_the_staleness(staleness: int, delays_ms: list[list[int]], slowest: int) -> None:
    """Ranks of random speeds, one of them slower than the others."""
    watch = Watch()

    def body(group: NativeGroup) -> torch.Tensor:
        weight = nn.Parameter(torch.zeros(NUM_RANKS))
        exchange = Asynchronous(group, "weights", [Slot("weight", weight)], staleness)
        for delay_ms in delays_ms[group.rank]:
            time.sleep(1e-3 * (delay_ms + 4 * (group.rank == slowest)))  # the work of a step
            with torch.no_grad():
                weight[group.rank] += NUM_RANKS
            watch.stepped(group.rank)
            exchange.after_step()
            watch.finished(group.rank)
        watch.ended(group.rank)
        exchange.close()
        return weight.detach()

    ends = run_job(job_configs(Deployment(num_workers=NUM_RANKS)), body)
    assert watch.furthest <= staleness
    assert all(end.tolist() == [12.0] * NUM_RANKS for end in ends)


def test_the_staleness_is_used() -> None:
    """A rank that does not move lets the others be as far ahead as they may."""
    staleness, watch = 3, Watch()
    are_ahead = [threading.Event() for _ in range(NUM_RANKS)]

    def body(group: NativeGroup) -> None:
        weight = nn.Parameter(torch.zeros(4))
        exchange = Asynchronous(group, "weights", [Slot("weight", weight)], staleness)
        if group.rank == 0:
            assert all(event.wait(20) for event in are_ahead[1:]), "the others must not wait for rank 0"
        for step in range(5):
            watch.stepped(group.rank)
            exchange.after_step()
            watch.finished(group.rank)
            if step + 1 == staleness:
                are_ahead[group.rank].set()
        watch.ended(group.rank)
        exchange.close()

    run_job(job_configs(Deployment(num_workers=NUM_RANKS)), body)
    assert watch.furthest == staleness


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> float:
    torch.manual_seed(0)
    teacher = torch.randn(16, 4)
    torch.manual_seed(1 + lg.rank())
    loss = torch.zeros(())
    for _ in range(num_steps):
        inputs = torch.randn(32, 16)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), inputs @ teacher)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    return loss.item()


def weights(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def scheduled(num_steps: Sequence[int], options: dict[str, Any]) -> tuple[float, list[float]]:
    job = lg.init()
    model = net()
    if job.rank:
        nn.init.zeros_(next(model.parameters()))  # becomes rank 0's
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    lg.schedule(model, optimizer, **options)
    loss = train(model, optimizer, num_steps[job.rank])
    lg.flush(model)
    lg.unschedule(model)
    return loss, weights(model)


def test_staleness_0_is_synchronous_to_the_last_bit(crew: Crew) -> None:
    plain = crew.run(scheduled, [20, 20], {})
    assert crew.run(scheduled, [20, 20], {"staleness": 0}) == plain


def test_ranks_learn_and_end_with_the_same_weights_whatever_their_number_of_steps(crew: Crew) -> None:
    (synchronous, _), *_ = crew.run(scheduled, [60] * 3, {}, size=3)
    outcomes = crew.run(scheduled, [60, 70, 50], {"staleness": 2}, size=3)
    assert outcomes[0][1] == outcomes[1][1] == outcomes[2][1]
    assert all(loss < 2 * synchronous for loss, _ in outcomes)


def own_share() -> tuple[list[float], list[float]]:
    """A rank's first step counts as one of two; afterwards so does the other's."""
    job = lg.init()
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    lg.schedule(model, optimizer, staleness=3)
    model.weight.grad = torch.tensor([[-2.0], [0.0]] if job.rank else [[0.0], [-2.0]])
    optimizer.step()
    first = weights(model)
    job.group.barrier()
    lg.unschedule(model)
    return first, weights(model)


def test_a_change_counts_with_its_share(crew: Crew) -> None:
    assert crew.run(own_share) == [([0.0, 1.0], [1.0, 1.0]), ([1.0, 0.0], [1.0, 1.0])]


def byteps_script(order: str) -> tuple[str, list[float], float]:
    """A script for BytePS: parameters are broadcast before or after the optimizer is made."""
    os.environ["BYTEPS_ENABLE_ASYNC"] = "1"
    try:
        lg.init()
    finally:
        del os.environ["BYTEPS_ENABLE_ASYNC"]
    model = net()
    if lg.rank():
        nn.init.zeros_(next(model.parameters()))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if order == "after":
        optimizer = lg.DistributedOptimizer(optimizer, model.named_parameters())
    lg.broadcast_parameters(model.state_dict(), root_rank=0)
    if order == "before":
        optimizer = lg.DistributedOptimizer(optimizer, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100)
    loss = train(model, optimizer, 40 + 5 * lg.rank())
    scheduler.step()
    with pytest.raises(InputError, match="join is for synchronous training"):
        horovod.join()
    lg.shutdown()
    return order, weights(model), loss


@pytest.mark.parametrize("order", ["before", "after"])
def test_byteps_enable_async(crew: Crew, order: str) -> None:
    one, other = crew.run(byteps_script, order)
    assert one[1] == other[1]
    assert max(one[2], other[2]) < 1.0


def refusal(options: Sequence[dict[str, Any]], error_type: type[Exception]) -> str:
    job = lg.init()
    model = net()
    with pytest.raises(error_type) as error:
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), **options[job.rank])
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "error_type", "why"),
    [
        ([{"staleness": -1}] * 2, InputError, "staleness is -1; accepted is a whole number from 0 on"),
        ([{"staleness": "4"}] * 2, InputError, "staleness is '4'; accepted is a whole number from 0 on"),
        (
            [{"staleness": 4, "local_steps": 8}] * 2,
            InputError,
            "staleness=4 and local_steps=8 do not go together; give one of them",
        ),
        ([{"staleness": 4, "transport": "c10d"}] * 2, InputError, "staleness=4 needs transport native"),
        ([{"staleness": 4, "compression": "fp16"}] * 2, InputError, "staleness=4 does not go with compression"),
        ([{"staleness": 4, "compression": "topk:0.1"}] * 2, InputError, "staleness=4 does not go with compression"),
        (
            [{"staleness": 4}, {"staleness": 2}],
            MismatchError,
            "schedule: rank 0 says staleness=4, rank 1 says staleness=2",
        ),
    ],
)
def test_bad_choices_are_said_on_every_rank(
    crew: Crew, options: list[dict[str, Any]], error_type: type[Exception], why: str
) -> None:
    for message in crew.run(refusal, options, error_type):
        assert message.startswith(why)


def sum_is_refused() -> str:
    os.environ["LEGATO_STALENESS"] = "2"
    try:
        lg.init()
    finally:
        del os.environ["LEGATO_STALENESS"]
    with pytest.raises(InputError) as error:
        lg.DistributedOptimizer(torch.optim.SGD(net().parameters(), lr=0.1), op=lg.Sum)
    return str(error.value)


def test_what_an_asynchronous_optimizer_cannot_do(crew: Crew) -> None:
    for message in crew.run(sum_is_refused):
        assert message.startswith("staleness is 2 (LEGATO_STALENESS, BYTEPS_ENABLE_ASYNC)")
