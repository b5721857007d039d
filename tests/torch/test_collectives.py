"""Horovod's and BytePS's functions: exact values, gradients, and errors that every rank hears."""

from typing import Any

import pytest
import torch

import legato.byteps.torch as bps
import legato.horovod.torch as horovod
import legato.torch as hvd
from legato.errors import InputError, LegatoError, MismatchError
from tests.torch.crew import Crew

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


def tensor_of(rank: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    """1, 2, 3 ... times rank + 1: small integers, exact in every dtype."""
    numel = int(torch.Size(shape).numel())
    return ((rank + 1) * torch.arange(1, numel + 1)).reshape(shape).to(dtype)


def refuses(error: type[Exception], words: str, call: Any, *arguments: Any, **keywords: Any) -> None:
    with pytest.raises(error, match=words):
        call(*arguments, **keywords)


# ---- values ----


def _allreduce_values() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    everybody = [tensor_of(each) for each in range(size)]
    mine = tensor_of(rank)
    stack = torch.stack(everybody)
    expected = {
        hvd.Average: stack.sum(0) / size,
        hvd.Sum: stack.sum(0),
        hvd.Min: stack.amin(0),
        hvd.Max: stack.amax(0),
        hvd.Product: stack.prod(0),
    }
    for op, value in expected.items():
        assert torch.equal(hvd.allreduce(mine, op=op), value), op
        assert torch.equal(mine, tensor_of(rank)), "the input stays"
        assert torch.equal(hvd.synchronize(hvd.allreduce_async(mine, op=op, name=f"named {op}")), value)
    assert torch.equal(hvd.allreduce(mine), expected[hvd.Average])
    assert torch.equal(hvd.allreduce(mine, average=False), expected[hvd.Sum])
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.equal(scaled, 2 * expected[hvd.Sum])
    assert torch.equal(hvd.allreduce(mine, compression=hvd.Compression.fp16), expected[hvd.Average])
    refuses(InputError, "give op alone", hvd.allreduce, mine, average=True, op=hvd.Sum)
    refuses(InputError, "op is 'median'", hvd.allreduce, mine, op="median")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_allreduce(crew: Crew, size: int) -> None:
    crew.run(_allreduce_values, size=size)


def _in_place() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = torch.stack([tensor_of(each) for each in range(size)]).sum(0)
    mine = tensor_of(rank)
    assert hvd.allreduce_(mine, op=hvd.Sum) is mine
    assert torch.equal(mine, total)
    turned = tensor_of(rank).t()
    handle = hvd.allreduce_async_(turned, op=hvd.Sum, prescale_factor=2.0)
    assert hvd.synchronize(handle) is turned
    assert hvd.poll(handle)
    assert torch.equal(turned.t(), 2 * total)
    every_other = torch.zeros(4)
    every_other[::2] = rank + 1.0
    hvd.allreduce_(every_other[::2], op=hvd.Sum)
    assert every_other.tolist() == [sum(each + 1 for each in range(size)), 0] * 2
    parameter = torch.nn.Parameter(tensor_of(rank))
    hvd.allreduce_(parameter, op=hvd.Sum)
    assert torch.equal(parameter.detach(), total)


@pytest.mark.parametrize("size", [1, 2])
def test_in_place_and_other_layouts(crew: Crew, size: int) -> None:
    crew.run(_in_place, size=size)


def _every_dtype() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        mine = tensor_of(rank, dtype)
        everybody = [tensor_of(each, dtype) for each in range(size)]
        total = torch.stack([each.double() for each in everybody]).sum(0).to(dtype)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), total), dtype
        assert torch.equal(hvd.broadcast(mine, size - 1), everybody[-1]), dtype
        assert torch.equal(hvd.allgather(mine), torch.cat(everybody)), dtype
        assert torch.equal(hvd.reducescatter(mine, op=hvd.Sum), total[rank : rank + 1]), dtype
        came = hvd.alltoall(mine)
        assert isinstance(came, torch.Tensor)
        assert torch.equal(came, torch.stack([each[rank] for each in everybody])), dtype
    flags = torch.tensor([rank == 0, True, False])
    assert hvd.allreduce(flags, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.allreduce(flags, op=hvd.Min).tolist() == [False, True, False]
    assert hvd.broadcast(flags, 0).tolist() == [True, True, False]
    assert hvd.allgather(flags).dtype is torch.bool
    refuses(InputError, "of booleans", hvd.allreduce, flags, op=hvd.Sum)
    refuses(InputError, "complex64", hvd.allreduce, torch.zeros(2, dtype=torch.complex64))
    refuses(InputError, "sparse", hvd.allreduce, torch.eye(2).to_sparse())


def test_every_dtype(crew: Crew) -> None:
    crew.run(_every_dtype)


def _small_shapes() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert hvd.allreduce(torch.tensor(rank + 1.0), op=hvd.Sum).item() == size * (size + 1) / 2
    assert hvd.broadcast(torch.tensor(float(rank)), size - 1).item() == size - 1
    for shape in [(0,), (0, 3)]:
        nothing = torch.empty(shape)
        assert hvd.allreduce(nothing).shape == shape
        assert hvd.allreduce_(nothing).shape == shape
        assert hvd.broadcast(nothing, 0).shape == shape
        assert hvd.allgather(nothing).shape == shape
        assert hvd.reducescatter(nothing).shape == shape
    came = hvd.alltoall(torch.empty(0, 3), splits=[0] * size)
    assert came[0].shape == (0, 3)


@pytest.mark.parametrize("size", [1, 2])
def test_scalars_and_empty_tensors(crew: Crew, size: int) -> None:
    crew.run(_small_shapes, size=size)


def _grouped() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) // 2

    def group() -> list[torch.Tensor]:
        return [torch.full((length,), rank + 1.0) for length in (1, 5, 3)]

    for results in (
        horovod.grouped_allreduce(group(), op=hvd.Sum),
        horovod.grouped_allreduce(group(), name="group", op=hvd.Sum),
        horovod.grouped_allreduce_(group(), op=hvd.Sum),
        hvd.synchronize(horovod.grouped_allreduce_async(group(), op=hvd.Sum)),
        hvd.synchronize(horovod.grouped_allreduce_async_(group(), name="group", op=hvd.Sum)),
    ):
        assert [each.tolist() for each in results] == [[total], [total] * 5, [total] * 3]
    refuses(InputError, "at least one", horovod.grouped_allreduce, [])


@pytest.mark.parametrize("size", [1, 2])
def test_grouped(crew: Crew, size: int) -> None:
    crew.run(_grouped, size=size)


def _different_rows() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for _ in range(2):  # the second time, everything is known already
        mine = torch.full((rank + 1, 2), float(rank))
        gathered = hvd.synchronize(hvd.allgather_async(mine, name="rows"))
        assert gathered[:, 0].tolist() == [each for each in range(size) for _ in range(each + 1)]
        splits = torch.tensor([each + 1 for each in range(size)])
        sent = torch.arange(int(splits.sum())) + 100 * rank
        handle = hvd.alltoall_async(sent, splits)
        came, received = hvd.synchronize(handle)
        start = rank * (rank + 1) // 2
        assert received.tolist() == [rank + 1] * size
        assert came.tolist() == [100 * each + start + row for each in range(size) for row in range(rank + 1)]
    equal_shares = hvd.synchronize(hvd.alltoall_async(torch.arange(size)))
    assert isinstance(equal_shares, torch.Tensor)
    assert torch.equal(equal_shares, torch.full((size,), rank))
    odd = torch.arange(size + 1.0)
    share = hvd.synchronize(hvd.reducescatter_async(odd, op=hvd.Sum))
    assert share.tolist() == ([0.0, size] if rank == 0 else [(rank + 1.0) * size])
    hvd.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_different_numbers_of_rows(crew: Crew, size: int) -> None:
    crew.run(_different_rows, size=size)


# ---- names ----


def _many_without_names() -> int:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for _ in range(4):
        handles = [hvd.allreduce_async(torch.full((2,), float(each + rank)), op=hvd.Sum) for each in range(40)]
        order = range(40) if rank else reversed(range(40))  # ranks may wait in any order
        results = {each: hvd.synchronize(handles[each]) for each in order}
        assert all(results[each].tolist() == [size * each + size * (size - 1) / 2] * 2 for each in results)
    return len(hvd.init().group.session.member._declared)


def test_nameless_operations_do_not_pile_up(crew: Crew) -> None:
    for num_declared in crew.run(_many_without_names):
        assert num_declared == 16


def _one_name_many_shapes() -> None:
    hvd.init()
    for length in (3, 2, 3, 2, 4):
        assert hvd.allreduce(torch.ones(length), name="metric", op=hvd.Sum).tolist() == [hvd.size()] * length
    for root in (0, 1, 0):
        assert hvd.broadcast(torch.tensor([hvd.rank()]), root, name="from").item() == root


def test_a_name_may_change_its_shape_on_all_ranks(crew: Crew) -> None:
    crew.run(_one_name_many_shapes)


def _twice() -> None:
    hvd.init()
    # The other ranks come later, so the first operation is certainly under way.
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(2), name="loss")
        refuses(InputError, "'allreduce/loss'.*under way", hvd.allreduce_async, torch.ones(2), name="loss")
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(torch.ones(2), name="loss")
    assert hvd.synchronize(first).tolist() == [1, 1]
    assert hvd.allreduce(torch.ones(2), name="loss").tolist() == [1, 1]


def test_a_name_in_use(crew: Crew) -> None:
    crew.run(_twice)


# ---- errors ----


def _mismatches() -> None:
    hvd.init()
    rank = hvd.rank()
    odd = rank == 1
    refuses(MismatchError, "rank 1 says", hvd.allreduce, torch.ones(2 + odd))
    refuses(MismatchError, "allreduce/shape.*rank 1 says", hvd.allreduce, torch.ones(2 + odd), name="shape")
    dtype = torch.float64 if odd else torch.float32
    refuses(MismatchError, "dtype.*rank 1 says", hvd.allreduce, torch.ones(2, dtype=dtype), name="dtype")
    refuses(MismatchError, "by sum", hvd.allreduce, torch.ones(2), op=hvd.Sum if odd else hvd.Max, name="op")
    refuses(MismatchError, "root", hvd.broadcast, torch.ones(2), rank, name="root")
    refuses(LegatoError, "root 7", hvd.broadcast, torch.ones(2), 7 if odd else 0, name="no such root")
    refuses(MismatchError, "rank 1 says", hvd.allgather, torch.ones(2, 2 + odd), name="rows")
    refuses(MismatchError, "rank 1 says", hvd.reducescatter, torch.ones(2, 2 + odd), name="scatter")
    assert hvd.allreduce(torch.ones(2)).tolist() == [1, 1], "and the job goes on"
    assert hvd.allreduce(torch.ones(2), name="shape").tolist() == [1, 1], "also under that name"


def test_mismatches_are_heard_on_every_rank(crew: Crew) -> None:
    crew.run(_mismatches, size=3)


def _alone() -> None:
    refuses(LegatoError, "not initialised", hvd.allreduce, torch.ones(1))
    hvd.init()
    refuses(InputError, "root rank is 1", hvd.broadcast, torch.ones(1), 1)
    refuses(InputError, "splits", hvd.alltoall, torch.ones(2), splits=[1])
    assert horovod.join() == 0
    hvd.barrier()


def test_a_job_of_one(crew: Crew) -> None:
    crew.run(_alone, size=1)


# ---- gradients ----


def _gradients() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    weight = float(rank + 1)  # of this rank's loss; the sum of all ranks' losses is what is differentiated
    total = size * (size + 1) / 2

    def gradient(function: Any, shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
        x = torch.ones(shape, requires_grad=True)
        (weight * function(x)).sum().backward()
        assert x.grad is not None
        return x.grad

    assert (gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)) == total).all()
    assert (gradient(lambda x: hvd.allreduce(x, name="average")) == total / size).all()
    assert (gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0)) == 2 * total).all()
    assert (gradient(lambda x: bps.push_pull(x, average=False, name="pushed")) == total).all()
    assert (gradient(lambda x: horovod.grouped_allreduce([x, 2 * x], op=hvd.Sum)[1]) == 2 * total).all()
    assert (gradient(hvd.allgather, (rank + 1, 2)) == total).all()
    assert (gradient(lambda x: hvd.broadcast(x, 1)) == (total if rank == 1 else 0)).all()
    assert torch.equal(gradient(hvd.alltoall, (size, 2))[:, 0], torch.arange(1.0, size + 1))
    scattered = gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (size, 2))
    assert torch.equal(scattered[:, 0], torch.arange(1.0, size + 1))
    assert torch.equal(gradient(hvd.reducescatter, (size, 2))[:, 0], torch.arange(1.0, size + 1) / size)
    refuses(InputError, "has no gradient", gradient, lambda x: hvd.allreduce(x, op=hvd.Max))


@pytest.mark.parametrize("size", [2, 4])
def test_gradients(crew: Crew, size: int) -> None:
    crew.run(_gradients, size=size)


def _splits_gradient() -> None:
    hvd.init()
    rank = hvd.rank()
    x = torch.ones(3, requires_grad=True)
    output, received = hvd.alltoall(x, splits=[1, 2] if rank == 0 else [2, 1])
    assert received.tolist() == ([1, 2] if rank == 0 else [2, 1])
    ((rank + 1) * output).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == ([1, 2, 2] if rank == 0 else [1, 1, 2])


def test_gradient_of_an_uneven_alltoall(crew: Crew) -> None:
    crew.run(_splits_gradient)


# ---- objects ----


def _objects() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    mine = {"rank": rank, "list": [1, (2.5, None)], "tensor": torch.full((2,), rank), 3: "x" * rank}
    for name in (None, "object"):
        root = size - 1
        got = hvd.broadcast_object(mine if rank == root else None, root_rank=root, name=name)
        assert (got["rank"], got["list"], got[3]) == (root, [1, (2.5, None)], "x" * root)
        assert got["tensor"].tolist() == [root, root]
        everybody = hvd.allgather_object(mine, name=name)
        assert [each["rank"] for each in everybody] == list(range(size))
    if size > 1:
        refuses(InputError, "rank 0: a object", hvd.broadcast_object, object())
        refuses(InputError, "rank 1: a set", hvd.allgather_object, {1, 2} if rank == 1 else 0)


@pytest.mark.parametrize("size", [1, 2])
def test_objects(crew: Crew, size: int) -> None:
    crew.run(_objects, size=size)


def _parameters() -> None:
    hvd.init()
    rank = hvd.rank()
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    for each in (*model.parameters(), *model.buffers()):
        torch.nn.init.constant_(each.detach(), rank + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rank + 1.0, momentum=0.5)
    if rank == 1:
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
    weights = [each.clone() for each in model.state_dict().values()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=1, model=model)
    assert optimizer.param_groups[0]["lr"] == 2.0
    assert len(optimizer.state_dict()["state"]) == 4
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
    sums = hvd.allgather(torch.stack([each.double().sum() for each in model.state_dict().values()]).unsqueeze(0))
    assert torch.equal(sums[0], sums[1])
    if rank == 1:
        assert all(torch.equal(a, b) for a, b in zip(weights, model.state_dict().values(), strict=True))
    refuses(InputError, "'a' is a int", hvd.broadcast_parameters, {"a": 1})


def test_parameters_and_optimizer_state(crew: Crew) -> None:
    crew.run(_parameters)
