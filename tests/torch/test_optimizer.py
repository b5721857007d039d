"""DistributedOptimizer and its relatives: the same training as one process that sees all the data."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import legato.horovod.torch as horovod
import legato.torch as hvd
from legato.byteps.torch.cross_barrier import CrossBarrier
from legato.bytescheduler.pytorch.horovod import ScheduledOptimizer
from legato.errors import ClosedError, InputError
from tests.torch.crew import Crew

BATCH = 4


class Net(nn.Module):
    """Two layers, and one that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(3, 5)
        self.extra = nn.Linear(5, 5)
        self.last = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor, *, extra: bool = False) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        return torch.as_tensor(self.last(self.extra(x) if extra else x))


def batches(num: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(num):
        x = torch.randn(BATCH * size, 3, generator=generator, dtype=torch.float64)
        yield x, x[:, :2] * 2


def mine(x: torch.Tensor) -> torch.Tensor:
    return x[BATCH * hvd.rank() : BATCH * (hvd.rank() + 1)]


def alone(make: Callable[[Any], torch.optim.Optimizer], num: int) -> Net:
    """What one process with everybody's data would learn."""
    model = Net().double()
    optimizer = make(model.parameters())
    for x, y in batches(num, hvd.size()):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def same(model: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name, rtol=1e-10, atol=1e-12)


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def plain_sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=0.01)


def _equals_one_process(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    hvd.init()
    model = Net().double()
    if hvd.rank():
        nn.init.zeros_(model.first.weight)
    optimizer = make(model.parameters())
    own = type(optimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    distributed = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    assert isinstance(distributed, own)
    assert type(distributed).__name__ == own.__name__
    for x, y in batches(5, hvd.size()):
        distributed.zero_grad()
        functional.mse_loss(model(mine(x)), mine(y)).backward()
        distributed.step()
    assert model.extra.weight.grad is None, "nobody used it"
    same(model, alone(make, 5))
    assert distributed.state_dict().keys() == {"state", "param_groups"}
    distributed.load_state_dict(distributed.state_dict())
    make(model.parameters()).load_state_dict(distributed.state_dict())


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("make", [sgd, adam])
def test_equals_one_process(crew: Crew, make: Callable[[Any], torch.optim.Optimizer], size: int) -> None:
    crew.run(_equals_one_process, make, size=size)


def _reductions() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for options, expected in (
        ({}, (size + 1) / 2),
        ({"op": hvd.Sum}, size * (size + 1) / 2),
        ({"gradient_predivide_factor": 4.0}, (size + 1) / 2),
        ({"compression": hvd.Compression.fp16}, (size + 1) / 2),
        ({"num_groups": 2}, (size + 1) / 2),
    ):
        p = nn.Parameter(torch.zeros(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), **options)
        (p * (rank + 1)).sum().backward()
        optimizer.step()
        assert p.tolist() == [-expected] * 3, options
    for wrong in ({"op": hvd.Max}, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}):
        with pytest.raises(InputError):
            hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), **wrong)
    with pytest.raises(InputError, match="already"):
        hvd.DistributedOptimizer(optimizer)


def test_reductions(crew: Crew) -> None:
    crew.run(_reductions)


def _names() -> None:
    hvd.init()
    p, q = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    for named, words in (([("p", p), ("p", q)], "more than once: p"), ([("p", p)], "lacks 1"), ([p], "pairs")):
        with pytest.raises(InputError, match=words):
            hvd.DistributedOptimizer(torch.optim.SGD([p, q], lr=1.0), named_parameters=named)  # type: ignore[arg-type]


def test_names(crew: Crew) -> None:
    crew.run(_names, size=1)


def _accumulation() -> None:
    hvd.init()
    rank = hvd.rank()
    p = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), backward_passes_per_step=2)
    for _ in range(2):
        (p * (rank + 1)).sum().backward()
    with pytest.raises(InputError, match="computed again"):
        p.sum().backward()
    with pytest.raises(InputError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    assert p.tolist() == [-3.0, -3.0]
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(3)
    (p * (rank + 1)).sum().backward()
    optimizer.step()  # earlier than announced: what is there is averaged
    assert p.tolist() == [-4.5, -4.5]


def test_accumulation(crew: Crew) -> None:
    crew.run(_accumulation)


def _clipping(how: str) -> None:
    hvd.init()
    rank = hvd.rank()
    p = nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        (p * (rank + 1) * 10).sum().backward()  # the average has norm 30
        if how == "horovod":
            optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
        assert norm.item() == pytest.approx(30.0)
        if how == "horovod":
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    assert torch.allclose(p, torch.full((4,), -1.0))


@pytest.mark.parametrize("how", ["horovod", "plain"])
def test_clipping(crew: Crew, how: str) -> None:
    crew.run(_clipping, how)


def _scaler() -> None:
    hvd.init()
    p = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for wrong in (True, False):
        optimizer.zero_grad()
        factor = torch.inf if wrong and hvd.rank() == 1 else 1.0
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert p.tolist() == [-1.0, -1.0], "the step with an infinity on one rank was left out on both"


def test_gradient_scaler(crew: Crew) -> None:
    crew.run(_scaler)


def _schedulers(before: bool) -> None:
    hvd.init()
    p = nn.Parameter(torch.zeros(1))
    optimizer: torch.optim.Optimizer = torch.optim.SGD([p], lr=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(optimizer)
        if not before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            (p * 2 * hvd.rank()).sum().backward()
            optimizer.step()
            scheduler.step()
    assert p.tolist() == [-1.75]


@pytest.mark.parametrize("before", [True, False])
def test_learning_rate_schedulers(crew: Crew, before: bool) -> None:
    crew.run(_schedulers, before)


def _closure() -> None:
    hvd.init()
    p = nn.Parameter(torch.tensor([float(4)]))
    target = float(hvd.rank())
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS([p], lr=1.0, max_iter=4))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((p - target) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert p.item() == pytest.approx((hvd.size() - 1) / 2)


def test_closure(crew: Crew) -> None:
    crew.run(_closure)


def _unused() -> None:
    hvd.init()
    model = Net().double()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    reference = Net().double()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for step, (x, y) in enumerate(batches(4, hvd.size())):
        extra = step % 2 == 0  # and only on rank 1
        optimizer.zero_grad()
        functional.mse_loss(model(mine(x), extra=extra and hvd.rank() == 1), mine(y)).backward()
        optimizer.step()
        plain.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for rank in range(hvd.size()):
            part = slice(BATCH * rank, BATCH * (rank + 1))
            loss = loss + functional.mse_loss(reference(x[part], extra=extra and rank == 1), y[part])
        (loss / hvd.size()).backward()
        plain.step()
        assert (model.extra.weight.grad is None) == (not extra)
    same(model, reference)


def test_parameters_that_some_ranks_do_not_use(crew: Crew) -> None:
    crew.run(_unused)


def _sparse() -> None:
    """The same training with sparse gradients, with dense ones, and of one process with all the data."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()

    def trained(*, sparse: bool, **options: Any) -> torch.Tensor:
        table = nn.Embedding(6, 2, sparse=sparse)
        nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), **options)
        for step in range(3):
            optimizer.zero_grad()
            if (rank, step) != (1, 1):  # then rank 1 does not know that the others' gradients are sparse
                table(torch.tensor([rank, 3, 3, step])).sum().backward()
            optimizer.step()
            assert table.weight.grad is not None
            assert table.weight.grad.is_sparse == (sparse and not options.get("sparse_as_dense", False))
        return table.weight.detach()

    expected = torch.zeros(6, 2)
    for step, each in itertools.product(range(3), range(size)):
        if (each, step) != (1, 1):
            for row in (each, 3, 3, step):
                expected[row] -= 1 / size
    for options in (
        {},
        {"sparse_as_dense": True},
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
    ):
        torch.testing.assert_close(trained(sparse=True, **options), expected)
    torch.testing.assert_close(trained(sparse=True, op=hvd.Sum), size * expected)
    torch.testing.assert_close(trained(sparse=False), expected)


@pytest.mark.parametrize("size", [2, 3])
def test_sparse_gradients(crew: Crew, size: int) -> None:
    crew.run(_sparse, size=size)


def _sparse_here_and_dense_there() -> None:
    hvd.init()
    table = nn.Parameter(torch.zeros(3, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table], lr=1.0))
    if hvd.rank() == 0:
        functional.embedding(torch.tensor([2]), table, sparse=True).sum().backward()
    else:
        (4 * table).sum().backward()
    optimizer.step()
    assert table[:, 1].tolist() == [-2, -2, -2.5]


def test_gradients_that_are_sparse_on_one_rank_alone(crew: Crew) -> None:
    crew.run(_sparse_here_and_dense_there)


class Corners(torch.autograd.Function):
    """The sum of a table, whose gradient is sparse in both dimensions, as `torch.sparse` gives it."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.places, ctx.shape = places, table.shape
        return table[places[0], places[1]].sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.sparse_coo_tensor(ctx.places, gradient.expand(ctx.places.shape[1]), ctx.shape), None


def _sparse_in_two_dimensions() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    table = nn.Parameter(torch.zeros(3, 4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table], lr=1.0))
    places = torch.tensor([[0, rank], [0, 3]])  # (0, 0) is everybody's
    Corners.apply(table, places).backward()  # type: ignore[no-untyped-call]
    optimizer.synchronize()
    assert table.grad is not None
    assert table.grad.sparse_dim() == 2
    average = table.grad.to_dense()
    assert average[0, 0] == 1
    assert average[:size, 3].tolist() == [1 / size] * size
    assert average.sum() == 2
    both = hvd.synchronize(horovod.sparse_allreduce_async(table.grad.detach().clone(), "twice", hvd.Sum))
    torch.testing.assert_close(both.to_dense(), size * average)
    half = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16), (4, 2))
    assert hvd.synchronize(horovod.sparse_allreduce_async(half, "narrow", hvd.Sum)).dtype is torch.bfloat16


def test_gradients_with_two_sparse_dimensions(crew: Crew) -> None:
    crew.run(_sparse_in_two_dimensions)


def _more_parameters() -> None:
    hvd.init()
    p, q = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    optimizer.add_param_group({"params": [q], "lr": 2.0})
    ((p + q) * 2 * hvd.rank()).sum().backward()
    optimizer.step()
    assert (p.item(), q.item()) == (-1.0, -2.0)


def test_parameters_added_later(crew: Crew) -> None:
    crew.run(_more_parameters)


def _again() -> None:
    p = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=1.0)
    for _ in range(2):
        hvd.init()
        hvd.DistributedOptimizer(optimizer)
        optimizer.zero_grad()
        (p * 2 * hvd.rank()).sum().backward()
        optimizer.step()
        hvd.shutdown()
    assert p.item() == -2.0
    with pytest.raises(ClosedError, match="has ended"):
        optimizer.step()  # alone
    assert p.item() == -2.0


def test_shutdown_and_again(crew: Crew) -> None:
    crew.run(_again)


# ---- join ----


def _join(num_batches: list[int]) -> tuple[int, list[float], float]:
    hvd.init()
    p, q = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    often = hvd.DistributedOptimizer(torch.optim.SGD([q], lr=1.0))
    seen = []
    for epoch in range(2):
        for batch in range(num_batches[hvd.rank()]):
            optimizer.zero_grad()
            (p * hvd.size()).sum().backward()
            optimizer.step()
            for _ in range(1 + batch):
                often.zero_grad()
                q.sum().backward()
                often.step()
            assert p.grad is not None
            seen.append(p.grad.item())
        last = horovod.join()
        hvd.broadcast_parameters([("p", p), ("q", q)], root_rank=last)
        assert epoch in (0, 1)
    return last, seen, p.item()


@pytest.mark.parametrize(
    ("num_batches", "last", "total"),
    [([1, 3], {1}, -8.0), ([3, 1], {0}, -8.0), ([2, 2], {0, 1}, -8.0), ([0, 2, 1], {1}, -6.0)],
)
def test_join(crew: Crew, num_batches: list[int], last: set[int], total: float) -> None:
    outcomes = crew.run(_join, num_batches, size=len(num_batches))
    assert len({joined_last for joined_last, _, _ in outcomes}) == 1
    for rank, (joined_last, seen, p) in enumerate(outcomes):
        # A gradient is the number of ranks that still train: each gives `size`, the others zeros, over `size`.
        training = [sum(count > batch for count in num_batches) for batch in range(num_batches[rank])]
        assert seen == training * 2
        assert joined_last in last
        assert p == total


# ---- across the barrier ----


def _crossing(make: Any, wrapped: bool) -> None:
    hvd.init()
    model = Net().double()
    optimizer: torch.optim.Optimizer = plain_sgd(model.parameters())
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduled = make(model, optimizer, num_steps=5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(scheduled, lambda _: 1.0)
    assert type(scheduled) is torch.optim.SGD
    for x, y in batches(5, hvd.size()):
        scheduled.zero_grad()
        functional.mse_loss(model(mine(x)), mine(y)).backward()
        scheduled.step()
        scheduler.step()
    weight = vars(model.first)["_parameters"]["weight"].clone()
    assert torch.equal(weight, model.state_dict()["first.weight"]), "after num_steps nothing is left to do"
    same(model, alone(plain_sgd, 5))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("make", [ScheduledOptimizer, CrossBarrier])
def test_across_the_barrier(crew: Crew, make: Any, wrapped: bool) -> None:
    crew.run(_crossing, make, wrapped)


def _sums() -> None:
    hvd.init()
    model = Net()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Sum)
    with pytest.raises(InputError, match="averages"):
        ScheduledOptimizer(model, optimizer)


def test_across_the_barrier_sums(crew: Crew) -> None:
    crew.run(_sums)


def test_across_the_barrier_alone(crew: Crew) -> None:
    crew.run(_crossing, CrossBarrier, True, size=1)
