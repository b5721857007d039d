"""Sparse gradients: embeddings that touch a few rows, under a schedule and as a collective."""

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import InputError
from legato.torch.compat.collectives import sparse_allreduce_async
from tests.torch.crew import Crew

NUM_ROWS, WIDTH, STEPS = 200, 4, 6


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(NUM_ROWS, WIDTH, sparse=True), nn.Linear(WIDTH, 2))


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randint(0, NUM_ROWS, (3, 5), generator=torch.Generator().manual_seed(100 * step + rank))


def trained() -> float:
    """How far a scheduled model is from one that saw all ranks' batches itself."""
    lg.init()
    model, alone = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_hand = torch.optim.SGD(alone.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(lg.rank(), step)).square().sum().backward()
        optimizer.step()
        by_hand.zero_grad()
        for rank in range(lg.size()):
            (alone(batch(rank, step)).square().sum() / lg.size()).backward()
        by_hand.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max((mine - other).abs().max().item() for mine, other in pairs)


def test_scheduled_embeddings(crew: Crew) -> None:
    assert max(crew.run(trained)) < 1e-6


def sparse_adam() -> tuple[bool, list[float]]:
    """An optimizer that takes sparse gradients alone; one rank does not use the table at all in some steps."""
    lg.init()
    torch.manual_seed(0)
    table = nn.Embedding(NUM_ROWS, WIDTH, sparse=True)
    start = table.weight.detach().clone()
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    lg.schedule(table, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = batch(lg.rank(), step)
        if lg.rank() == 1 and step == 2:
            rows = rows[:0]
        table(rows).square().sum().backward()
        optimizer.step()
    weight = table.state_dict()["weight"]
    seen = torch.cat([batch(rank, step).flatten() for rank in range(2) for step in range(STEPS)]).unique()
    untouched = torch.ones(NUM_ROWS, dtype=torch.bool)
    untouched[seen] = False
    return torch.equal(weight[untouched], start[untouched]), weight.flatten().tolist()


def test_sparse_optimizers(crew: Crew) -> None:
    (rest_is_untouched, weights), (_, other) = crew.run(sparse_adam)
    assert rest_is_untouched
    assert weights == other


def reduced() -> None:
    lg.init()
    rank, size = lg.rank(), lg.size()
    mine = torch.sparse_coo_tensor(torch.tensor([[rank, 9, 9]]), torch.ones(3, 2), (10, 2), check_invariants=True)
    total = lg.synchronize(sparse_allreduce_async(mine, "table", op=lg.Sum))
    assert total.is_sparse
    expected = torch.zeros(10, 2)
    expected[:size] = 1
    expected[9] = 2 * size
    assert torch.equal(total.to_dense(), expected)
    assert torch.equal(sparse_allreduce_async(mine).wait().to_dense(), expected / size)
    with pytest.raises(InputError, match="sparse_allreduce_async"):
        lg.allreduce(mine)
    with pytest.raises(InputError, match="accepted are Average and Sum"):
        sparse_allreduce_async(mine, op=lg.Max)
    with pytest.raises(InputError, match="rows of int64"):
        sparse_allreduce_async(mine.to(torch.int64))


def test_sparse_allreduce(crew: Crew) -> None:
    crew.run(reduced)


def under_ddp() -> None:
    """Sparse gradients of a table that one rank does not use in the second step."""
    lg.init()
    rank, size = lg.rank(), lg.size()
    table = nn.Embedding(5, 2, sparse=True)
    nn.init.zeros_(table.weight)
    model = lg.DistributedDataParallel(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for rows in ([rank, 3], [] if rank else [4]):
        optimizer.zero_grad()
        model(torch.tensor(rows, dtype=torch.long)).sum().backward()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        optimizer.step()
    expected = [-1 / size if row < size else 0 for row in range(3)] + [-1, -1 / size]
    assert table.weight[:, 0].tolist() == pytest.approx(expected)


def test_under_distributed_data_parallel(crew: Crew) -> None:
    crew.run(under_ddp)
