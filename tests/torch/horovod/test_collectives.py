"""Horovod's functions on tensors, where `legato.torch` has not shown them: dtypes, groups, gradients, errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import legato.horovod.torch as hvd
from tests.torch.crew import Crew

NUMBERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def values(rank: int, dtype: torch.dtype, rows: int = 4) -> torch.Tensor:
    return ((rank + 1) * torch.arange(1, 2 * rows + 1)).reshape(rows, 2).to(dtype)


def _dtypes() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in NUMBERS:
        mine, everybody = values(rank, dtype), torch.stack([values(each, dtype) for each in range(size)])
        for op, exact in (
            (hvd.Sum, everybody.double().sum(0)),
            (hvd.Average, everybody.double().sum(0) / size),
            (hvd.Min, everybody.double().amin(0)),
            (hvd.Max, everybody.double().amax(0)),
            (hvd.Product, everybody.double().prod(0)),
        ):
            expected = exact.to(dtype)
            assert torch.equal(hvd.allreduce(mine, op=op), expected), (dtype, op)
            assert torch.equal(hvd.allreduce_(mine.clone(), op=op), expected), (dtype, op)
            share = hvd.reducescatter(mine, op=op)
            assert torch.equal(share, expected.tensor_split(size)[rank]), (dtype, op)
        assert torch.equal(hvd.broadcast(mine, 1), everybody[1]), dtype
        assert torch.equal(hvd.allgather(mine), everybody.flatten(0, 1)), dtype
        came, splits = hvd.alltoall(mine, splits=torch.tensor([1, 3] if rank else [2, 2]))
        rows = (everybody[0, 2:], everybody[1, 1:]) if rank else (everybody[0, :2], everybody[1, :1])
        assert torch.equal(came, torch.cat(rows)), dtype
        assert splits.tolist() == ([2, 3] if rank else [2, 1])
    flags = torch.tensor([[True, False], [rank == 0, False]])
    assert hvd.allgather(flags).tolist() == [[True, False], [True, False], [True, False], [False, False]]
    assert hvd.broadcast(flags, 0)[1].tolist() == [True, False]
    assert hvd.allreduce(flags, op=hvd.Max)[1].tolist() == [True, False]
    assert hvd.reducescatter(flags, op=hvd.Min).dtype is torch.bool
    assert hvd.alltoall(flags)[0].tolist() == [True, False]


def test_every_dtype_in_every_collective(crew: Crew) -> None:
    crew.run(_dtypes)


def _scaled() -> None:
    """Before and after the sum; of integers in doubles, cut off to integers each time."""
    hvd.init()
    size = hvd.size()
    for dtype, large in ((torch.int16, 10_001), (torch.int32, 100_000_007), (torch.int64, 10**12 + 7)):
        mine = torch.tensor([3, 5, large]).to(dtype)
        before = (mine.double() * 0.3).to(dtype)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.3), before * size), dtype
        after = (mine.double() * size * 0.3).to(dtype)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum, postscale_factor=0.3), after), dtype
    rows = torch.arange(4.0)
    share = hvd.reducescatter(rows, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert torch.equal(share, size * rows.tensor_split(size)[hvd.rank()])


def test_factors(crew: Crew) -> None:
    crew.run(_scaled)


def _groups() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    def mine() -> list[torch.Tensor]:
        return [torch.full((rank + 1, 2), float(rank)), torch.full((2,), rank, dtype=torch.int16)]

    rows = [each for each in range(size) for _ in range(each + 1)]
    for name in (None, "group"):
        for gathered in (
            hvd.grouped_allgather(mine(), name=name),
            hvd.synchronize(hvd.grouped_allgather_async(mine(), name=name)),
        ):
            assert gathered[0][:, 1].tolist() == rows
            assert gathered[1].tolist() == [each for each in range(size) for _ in range(2)]
            assert gathered[1].dtype is torch.int16
        table, vector = torch.arange(6.0).reshape(3, 2), torch.arange(5)
        for shares in (
            hvd.grouped_reducescatter([table, vector], name=name, op=hvd.Sum),
            hvd.synchronize(hvd.grouped_reducescatter_async([table, vector], name=name, op=hvd.Sum)),
            hvd.grouped_reducescatter([table, vector], name=name, op=hvd.Sum, compression=hvd.Compression.fp16),
        ):
            assert torch.equal(shares[0], size * table.tensor_split(size)[rank])
            assert torch.equal(shares[1], size * vector.tensor_split(size)[rank])
    for call in (hvd.grouped_allgather, hvd.grouped_reducescatter, hvd.grouped_allgather_async):
        with pytest.raises(ValueError, match="at least one"):
            call([])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups(crew: Crew, size: int) -> None:
    crew.run(_groups, size=size)


def _gradients() -> None:
    """Horovod's: of `allgather` and `broadcast` an average, of `reducescatter` that times the ranks."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    mean = (size + 1) / 2

    def gradient(function: Callable[[torch.Tensor], Any], shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
        x = torch.ones(shape, requires_grad=True)
        ((rank + 1.0) * function(x)).sum().backward()
        assert x.grad is not None
        return x.grad

    assert (gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)) == size * mean).all()
    assert (gradient(hvd.allreduce) == mean).all()
    assert (gradient(hvd.allgather, (rank + 1, 2)) == mean).all()
    assert (gradient(lambda x: hvd.grouped_allgather([x, 2 * x])[1]) == 2 * mean).all()
    assert (gradient(lambda x: hvd.broadcast(x, 1)) == (mean if rank == 1 else 0)).all()
    by_reader = torch.arange(1.0, size + 1)
    assert torch.equal(gradient(hvd.alltoall, (size, 2))[:, 0], by_reader)
    assert torch.equal(gradient(hvd.reducescatter, (size, 2))[:, 0], by_reader)
    assert torch.equal(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (size, 2))[:, 0], size * by_reader)
    scaled = gradient(lambda x: hvd.grouped_reducescatter([x], op=hvd.Sum, prescale_factor=0.5)[0], (size, 2))
    assert torch.equal(scaled[:, 0], size * by_reader / 2)


@pytest.mark.parametrize("size", [2, 4])
def test_gradients_are_horovods(crew: Crew, size: int) -> None:
    crew.run(_gradients, size=size)


def _errors() -> None:
    """Between ranks: HorovodInternalError, on all of them. A value that is wrong here: ValueError."""
    with pytest.raises(ValueError, match="init"):
        hvd.rank()
    with pytest.raises(ValueError, match="init"):
        hvd.allreduce(torch.ones(1))
    hvd.init()
    odd = hvd.rank() == 1
    for call in (
        lambda: hvd.allreduce(torch.ones(2 + odd)),
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.int16 if odd else torch.int8), name="dtype"),
        lambda: hvd.allgather(torch.ones(2, 2 + odd), name="rows"),
        lambda: hvd.grouped_allgather([torch.ones(1), torch.ones(2, 2 + odd)], name="group"),
        lambda: hvd.broadcast(torch.ones(2), hvd.rank(), name="root"),
        lambda: hvd.reducescatter(torch.ones(2, 2 + odd), name="share"),
        lambda: hvd.alltoall(torch.ones(2, 2 + odd), name="exchange"),
    ):
        with pytest.raises(hvd.HorovodInternalError) as caught:
            call()
        assert isinstance(caught.value, RuntimeError)
    for wrong, words in (
        (lambda: hvd.alltoall(torch.ones(3)), "not equal shares"),
        (lambda: hvd.alltoall(torch.ones(2), splits=[1]), "must be 2 numbers"),
        (lambda: hvd.alltoall(torch.ones(2), splits=torch.ones(2)), "accepted are integers"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "no dimensions"),
        (lambda: hvd.reducescatter(torch.ones(2), op=hvd.Adasum), "adasum"),
        (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), "give op alone"),
        (lambda: hvd.allreduce(torch.ones(1, dtype=torch.complex64)), "complex64"),
        (lambda: hvd.broadcast_parameters(3, 0), "params is a int"),  # type: ignore[arg-type]
        (lambda: hvd.init(process_sets="static"), "dynamic"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size(), "and the job goes on"


def test_errors_are_those_that_scripts_catch(crew: Crew) -> None:
    crew.run(_errors)


def _adasum() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    seeds = [torch.Generator().manual_seed(each) for each in range(size)]
    vectors = [torch.randn(3, 5, generator=seed, dtype=torch.float64) for seed in seeds]

    def combined(some: list[torch.Tensor]) -> torch.Tensor:
        if len(some) == 1:
            return some[0]
        a, b = combined(some[: len(some) // 2]), combined(some[len(some) // 2 :])
        both = (a * b).sum()
        return (1 - both / (2 * (a * a).sum())) * a + (1 - both / (2 * (b * b).sum())) * b

    expected = combined(vectors)
    for dtype, tolerance in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-6),
        (torch.float16, 2e-3),
        (torch.bfloat16, 2e-2),
    ):
        mine = vectors[rank].to(dtype)
        got = hvd.allreduce(mine, op=hvd.Adasum)
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
        assert got.dtype is dtype
        assert hvd.allreduce_(mine, op=hvd.Adasum, name="in place") is mine
        assert torch.equal(mine, got)
    first, second = hvd.grouped_allreduce([vectors[rank], 2 * vectors[rank]], op=hvd.Adasum)
    torch.testing.assert_close(second, 2 * first)
    with pytest.raises(ValueError, match="floating-point"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_adasum(crew: Crew, size: int) -> None:
    crew.run(_adasum, size=size)


def _three() -> None:
    hvd.init()
    with pytest.raises(NotImplementedError, match=r"combines 2, 4, 8 \.\.\. ranks, and here are 3"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="here are 3"):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), op=hvd.Adasum)


def test_adasum_of_three(crew: Crew) -> None:
    crew.run(_three, size=3)
