"""BytePS's functions on tensors and the job; its optimizers are Horovod's (test_optimizer.py, compat/)."""

import os

import pytest
import torch
from torch import nn

import legato.byteps.torch as bps
import legato.torch as lg
from legato.byteps.torch.parallel import DistributedDataParallel
from legato.errors import InputError, LegatoError
from tests.torch.crew import Crew
from tests.torch.test_collectives import refuses


def _values() -> None:
    bps.init()
    rank, size = bps.rank(), bps.size()
    total = size * (size + 1) / 2
    mine = torch.full((3,), rank + 1.0)
    bps.declare("gradient", compressor_type="none")
    assert (bps.push_pull(mine, name="gradient") == total / size).all()
    assert (bps.push_pull(mine, average=False, name="gradient", version=3, priority=-2) == total).all()
    handles = [bps.push_pull_async(mine, name=f"p{each}", priority=-each) for each in range(3)]
    assert all((bps.synchronize(handle) == total / size).all() for handle in handles)
    assert bps.push_pull_inplace(mine, average=False, name="gradient") is mine
    first, _ = bps.push_pull_group_sync_inplace(torch.ones(1), name="g1")
    bps.synchronize(first)
    second, count = bps.push_pull_group_sync_inplace(torch.ones(1), name="g2")
    assert count == 1
    bps.synchronize(second)
    now_ms, megabytes_per_s = bps.get_pushpull_speed()
    assert now_ms > 1e12
    assert (megabytes_per_s > 0) == (size > 1)
    refuses(InputError, "staleness", bps.push_pull_inplace, mine, staleness=1)


@pytest.mark.parametrize("size", [1, 2])
def test_values(crew: Crew, size: int) -> None:
    crew.run(_values, size=size)


def _gathered() -> tuple[list[float], list[float], list[float]]:
    bps.init()
    uneven = torch.full((bps.rank() + 1,), float(bps.rank()))
    whole = bps.allgather(torch.tensor(float(bps.rank())), name="scalar")
    sizes = [rank + 1 for rank in range(bps.size())]
    later = bps.synchronize(bps.allgather_async(uneven, sizes, name="later"))
    return whole.tolist(), bps.allgather(uneven, same_shape=False, name="uneven").tolist(), later.tolist()


def test_allgather(crew: Crew) -> None:
    assert crew.run(_gathered) == [([0, 1], [0, 1, 1], [0, 1, 1])] * 2


def _suspended() -> list[tuple[int, int, int, int]]:
    """(rank, size, local rank, local size) in a job of two, after it, in a job of one, and of two in another order."""
    bps.init()
    places = []

    def note() -> None:
        places.append((bps.rank(), bps.size(), bps.local_rank(), bps.local_size()))

    note()
    before = bps.rank()
    bps.suspend()
    assert not lg.is_initialized()
    note()
    refuses(InputError, "num_workers=0, num_servers=0", bps.resume, 0, 0)
    refuses(InputError, "global_rank is 5; accepted is 0 to 1", bps.resume, 2, 0, 5)
    bps.resume(1, 0, 0)
    note()
    refuses(InputError, "still running", bps.resume, 2, 0)
    bps.suspend()
    os.environ["LEGATO_ROLE"] = "worker"  # of servers, this one is told by its launcher
    refuses(InputError, "LEGATO_SERVERS is 0", bps.resume, 2, 0)
    del os.environ["LEGATO_ROLE"]
    bps.resume(2, 0, 1 - before)
    note()
    total = bps.push_pull(torch.tensor([float(bps.rank())]), average=False, name="after")
    assert total.item() == 1.0
    bps.suspend()
    return places


def test_suspend_and_resume_with_other_numbers(crew: Crew) -> None:
    first, second = crew.run(_suspended)
    assert first == [(0, 2, 0, 2), (0, 2, 0, 2), (0, 1, 0, 1), (1, 2, 1, 2)]
    assert second == [(1, 2, 1, 2), (1, 2, 1, 2), (0, 1, 0, 1), (0, 2, 0, 2)]


def _elastic() -> list[float]:
    """A weight after a step among two, after one alone, and after another among two, with the same optimizer."""
    bps.init()
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    seen = []
    before = bps.rank()

    def step() -> None:
        optimizer.zero_grad()
        (model(torch.ones(1, 1)) * (before + 1)).sum().backward()
        optimizer.step()
        seen.append(model.weight.item())

    step()
    bps.suspend()
    bps.resume(1, 0, 0)
    step()
    bps.suspend()
    bps.resume(2, 0, before)
    step()
    return seen


def test_an_optimizer_goes_on_after_resume(crew: Crew) -> None:
    assert crew.run(_elastic) == [[-1.5, -2.5, -4.0], [-1.5, -3.5, -5.0]]


def _ended() -> None:
    bps.init()
    bps.shutdown()
    refuses(LegatoError, "not initialised", bps.local_rank)


def test_after_the_end_nobody_has_a_rank(crew: Crew) -> None:
    crew.run(_ended, size=1)


def _wrapped() -> tuple[bool, str]:
    bps.init()
    model = nn.Linear(2, 1, bias=False)
    wrapped = DistributedDataParallel(model, device_ids=[bps.local_rank()])
    wrapped(torch.full((1, 2), float(bps.rank() + 1))).sum().backward()
    wrapped.synchronize()
    assert model.weight.grad is not None
    try:
        DistributedDataParallel(model, [0, 1])
    except InputError as error:
        return bool((model.weight.grad == 1.5).all()), str(error)
    return False, ""


def test_ddp_takes_a_device_that_is_not_there(crew: Crew) -> None:
    message = "device_ids has 2 entries; accepted is one: a process has one device"
    assert crew.run(_wrapped) == [(True, message)] * 2
