"""Collectives of some ranks: two sets at once, sets that overlap, and ranks that are in none."""

import time

import pytest
import torch
from torch import nn

import legato.horovod.torch as hvd
from tests.torch.crew import Crew


def _every_collective() -> None:
    even, odd, middle = hvd.ProcessSet([2, 0]), hvd.ProcessSet([1, 3]), hvd.ProcessSet([1, 2, 3])
    hvd.init(process_sets=[even, odd])
    assert hvd.add_process_set(middle) is middle
    rank = hvd.rank()
    assert hvd.global_process_set.ranks == [0, 1, 2, 3]
    assert hvd.global_process_set.rank() == rank
    assert [each.process_set_id for each in (hvd.global_process_set, even, odd, middle)] == [0, 1, 2, 3]
    assert even.ranks == [0, 2]
    for mine in (even if rank % 2 == 0 else odd, middle):
        if mine.included():
            _among(mine)
        else:
            assert rank == 0
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 4


def _among(mine: hvd.ProcessSet) -> None:
    """Each collective, in its several forms, of ranks that hold their own number."""
    rank, ranks, place = hvd.rank(), mine.ranks, mine.rank()
    assert ranks is not None
    assert place is not None
    size, total, root = len(ranks), float(sum(ranks)), ranks[-1]
    assert mine.size() == size
    own = torch.full((2, 3), float(rank))
    for name in (None, "x"):
        assert (hvd.allreduce(own, op=hvd.Sum, name=name, process_set=mine) == total).all()
        assert (hvd.allreduce(own, name=name, process_set=mine) == total / size).all()
        assert (hvd.allreduce_(own.clone(), op=hvd.Max, name=name, process_set=mine) == root).all()
        assert (hvd.grouped_allreduce_([own.clone()], op=hvd.Sum, name=name, process_set=mine)[0] == total).all()
        assert hvd.allgather(own[:1], name=name, process_set=mine)[:, 0].tolist() == ranks
        assert hvd.grouped_allgather([own[0, :1]], name=name, process_set=mine)[0].tolist() == ranks
        assert (hvd.broadcast(own, root, name=name, process_set=mine) == root).all()
        assert (hvd.broadcast_(own.clone(), root, name=name, process_set=mine) == root).all()
        share = hvd.reducescatter(torch.arange(4), op=hvd.Sum, name=name, process_set=mine)
        assert torch.equal(share, size * torch.arange(4).tensor_split(size)[place])
        came, splits = hvd.alltoall(torch.full((size,), rank), splits=[1] * size, name=name, process_set=mine)
        assert came.tolist() == ranks
        assert splits.tolist() == [1] * size
    rows = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (4,))
    assert hvd.sparse_allreduce_async(rows, "rows", hvd.Sum, mine)().to_dense().sum() == size
    assert hvd.broadcast_object({"from": rank}, root, process_set=mine) == {"from": root}
    assert hvd.allgather_object(rank, process_set=mine) == ranks
    hvd.barrier(mine)
    x = torch.ones(1, requires_grad=True)
    ((rank + 1) * hvd.broadcast(x, root, process_set=mine)).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx((total + size) / size if rank == root else 0)


def test_every_collective_on_subsets(crew: Crew) -> None:
    crew.run(_every_collective, size=4)


def _independent() -> float:
    """The pair of ranks 0 and 1 does much, while ranks 2 and 3 have not even begun."""
    hvd.init()
    first, second = hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])
    mine = first if first.included() else second
    if mine is second:
        hvd.allreduce(torch.zeros(1), name="begin")  # which comes after all the first does
    for _ in range(50):
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum, process_set=mine)[0].item() == 2
    done_s = time.monotonic()
    if mine is first:
        hvd.allreduce(torch.zeros(1), name="begin")
    return done_s


def test_sets_do_not_wait_for_each_other(crew: Crew) -> None:
    done_s = crew.run(_independent, size=4)
    assert max(done_s[:2]) < min(done_s[2:])


def _errors() -> None:
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    rank = hvd.rank()
    new = hvd.ProcessSet([0, 2])
    with pytest.raises(ValueError, match=r"ProcessSet\(.*\[0, 2\].*\) is not known here"):
        hvd.allreduce(torch.ones(1), process_set=new)
    if rank == 2:
        for call in (
            lambda: hvd.allreduce(torch.ones(1), process_set=pair),
            lambda: hvd.allgather_async(torch.ones(1), process_set=pair),
            lambda: hvd.broadcast_(torch.ones(1), 0, process_set=pair),
            lambda: hvd.alltoall(torch.ones(1), process_set=pair),
            lambda: hvd.grouped_reducescatter([torch.ones(1)], process_set=pair),
            lambda: hvd.barrier(pair),
        ):
            with pytest.raises(ValueError, match="rank 2 is not a member of ProcessSet"):
                call()
        assert not pair.included()
    else:
        with pytest.raises(ValueError, match="rank 2 is not in the process set; accepted are 0, 1"):
            hvd.broadcast(torch.ones(1), 2, process_set=pair)
        with pytest.raises(hvd.HorovodInternalError, match="rank 1 says"):
            hvd.allreduce(torch.ones(1 + rank), process_set=pair)
    for ranks, words in (([1, 0], "there already, with the number 1"), ([0, 1, 2], "the number 0"), ([0, 3], "0 to 2")):
        with pytest.raises(ValueError, match=words):
            hvd.add_process_set(ranks)
    with pytest.raises(ValueError, match="accepted is a list of ranks"):
        hvd.ProcessSet(["0"])  # type: ignore[list-item]
    with pytest.raises(hvd.HorovodInternalError, match="every rank must name the same"):
        hvd.add_process_set([0, 2] if rank else [1, 2])
    assert hvd.remove_process_set(pair)
    assert (pair.ranks, pair.process_set_id) == (None, None)
    assert not hvd.remove_process_set(pair)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert hvd.add_process_set([0, 1]).process_set_id is not None, "and again"
    solo = hvd.add_process_set([2])
    if rank == 2:
        assert hvd.allreduce(torch.ones(1), process_set=solo).item() == 1
        assert hvd.broadcast(torch.ones(1), 2, process_set=solo).item() == 1


def test_who_may_use_a_set(crew: Crew) -> None:
    crew.run(_errors, size=3)


def _optimizer() -> float:
    hvd.init()
    rank = hvd.rank()
    pair = hvd.add_process_set([0, 2])
    p = nn.Parameter(torch.tensor([float(rank)]))
    if pair.included():
        hvd.broadcast_parameters([("p", p)], root_rank=2, process_set=pair)
        assert p.item() == 2
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=0.5)
    distributed = hvd.DistributedOptimizer(optimizer, named_parameters=[("p", p)], process_set=pair)
    everybody = nn.Parameter(torch.zeros(1))
    other = hvd.DistributedOptimizer(torch.optim.SGD([everybody], lr=1.0))  # whose names must not get mixed up
    for _ in range(2):
        distributed.zero_grad()
        (p * (rank + 1)).sum().backward()
        distributed.step()
        other.zero_grad()
        (everybody * (rank + 1)).sum().backward()
        other.step()
    assert everybody.item() == -4
    if pair.included():
        hvd.broadcast_optimizer_state(distributed, root_rank=2, process_set=pair)
    return p.item()


def test_an_optimizer_of_some_ranks(crew: Crew) -> None:
    """Ranks 0 and 2 average 1 and 3; rank 1 trains alone."""
    assert crew.run(_optimizer, size=3) == [2 - 2 * 2.5, 1 - 2 * 2.5, 2 - 2 * 2.5]


def _again() -> None:
    """A job that has ended takes its sets with it; `init` opens the same objects anew."""
    pair = hvd.ProcessSet([0, 1])
    for _ in range(2):
        for _ in range(2):
            hvd.init(process_sets=[pair])
        if pair.included():
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2
        hvd.shutdown()
    hvd.init()
    assert hvd.add_process_set([1, 2]).process_set_id == pair.process_set_id
    with pytest.raises(ValueError, match="is not known here"):
        hvd.allreduce(torch.ones(1), process_set=pair)


def test_sets_of_one_job_after_another(crew: Crew) -> None:
    crew.run(_again, size=3)
