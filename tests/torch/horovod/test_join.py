"""Ranks that are out of data beside collectives that the others start by themselves."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn

import legato.horovod.torch as hvd
from tests.torch.crew import Crew


def _sums(when: int) -> int:
    """Rank 0 joins after `when` rounds; the others go on with named, nameless and asynchronous sums."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for step in itertools.count():
        if step == (when if rank == 0 else 20):
            break
        training = size if step < when else size - 1
        a = hvd.allreduce_async(torch.full((3,), step + 1.0), name="a", op=hvd.Sum)
        b = hvd.allreduce_async(torch.full((2, 2), step + 1, dtype=torch.int16), op=hvd.Sum)
        if rank:
            assert hvd.synchronize(b).unique().tolist() == [training * (step + 1)]
        assert hvd.synchronize(a).unique().tolist() == [training * (step + 1)]
        if not rank:
            assert hvd.synchronize(b).unique().tolist() == [training * (step + 1)]
        assert hvd.allreduce(torch.ones(1)).item() == pytest.approx(training / size), "an average counts all ranks"
        hvd.barrier()
        assert hvd.allreduce(torch.full((1,), -3.0), op=hvd.Max).item() == -3, "whoever is out of data adds nothing"
    last = hvd.join()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size, "and everybody is there again"
    assert hvd.allgather(torch.ones(1)).numel() == size
    return last


@pytest.mark.parametrize("when", [0, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_sums_go_on(crew: Crew, size: int, when: int) -> None:
    lasts = crew.run(_sums, when, size=size)
    assert len(set(lasts)) == 1
    assert lasts[0] != 0


def _one_after_another() -> int:
    """Every rank has one batch more than the one before; join, and once more."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    last = -1
    for _ in range(2):
        for step in range(2 * rank):
            total = hvd.allreduce(torch.ones(2), op=hvd.Sum)[0].item()
            assert total == sum(2 * other > step for other in range(size))
        last = hvd.join()
    return last


def test_each_joins_at_its_own_time(crew: Crew) -> None:
    assert crew.run(_one_after_another, size=4) == [3] * 4


def _others() -> None:
    hvd.init()
    mine = torch.ones(4, 2)
    for call in (
        partial(hvd.allgather, mine),
        partial(hvd.allgather, mine, name="rows"),
        partial(hvd.allgather, mine, name="rows"),  # now everything is known already
        partial(hvd.broadcast, mine, 1),
        partial(hvd.reducescatter, mine),
        partial(hvd.alltoall, mine),
    ):
        if hvd.rank():
            with pytest.raises(RuntimeError, match="rank 0 joined"):
                call()
        hvd.join()
        call()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_anything_but_a_sum_is_an_error_at_once(crew: Crew) -> None:
    crew.run(_others)


def _started_before() -> None:
    """What a rank has started before it joins goes on, also where the others start it afterwards."""
    hvd.init()
    rank = hvd.rank()
    if rank == 1:
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 1, "so rank 0 has joined"
    gathered = hvd.allgather_async(torch.tensor([rank]), name="rows")
    total = hvd.allreduce_async(torch.tensor([rank + 1]), name="total", op=hvd.Sum)
    if rank == 1:
        assert hvd.synchronize(gathered).tolist() == [0, 1]
        assert hvd.synchronize(total).item() == 3
        with pytest.raises(RuntimeError, match="rank 0 joined"):
            hvd.allgather(torch.tensor([rank]), name="rows")
    hvd.join()
    assert hvd.synchronize(gathered).tolist() == [0, 1]
    assert hvd.synchronize(total).item() == 3


def test_what_has_been_started_before(crew: Crew) -> None:
    crew.run(_started_before)


def _with_an_optimizer() -> list[float]:
    """A loss that is averaged in the loop, between the steps of an optimizer."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    p = nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    losses = []
    for _ in range(1 + 2 * rank):
        optimizer.zero_grad()
        p.sum().backward()
        losses.append(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
        optimizer.step()
    hvd.broadcast_parameters([p], root_rank=hvd.join())
    assert p.item() == pytest.approx(-1 - 2 / size)
    return losses


def test_beside_an_optimizer(crew: Crew) -> None:
    assert crew.run(_with_an_optimizer) == [[2.0], [2.0, 1.0, 1.0]]
