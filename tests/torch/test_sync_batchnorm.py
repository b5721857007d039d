"""Batch normalisation over all ranks equals torch's over the whole batch."""

from typing import Any

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import InputError
from tests.torch.crew import Crew

SHAPES: dict[str, tuple[int, ...]] = {"rows": (4,), "signals": (4, 3), "images": (4, 3, 2), "volumes": (4, 2, 3, 2)}
KINDS: dict[str, Any] = {
    "rows": nn.BatchNorm1d,
    "signals": nn.BatchNorm1d,
    "images": nn.BatchNorm2d,
    "volumes": nn.BatchNorm3d,
}


def _equals_whole_batch(kind: str, options: dict[str, Any], num_rows: list[int]) -> None:
    lg.init()
    rank, size = lg.rank(), lg.size()
    whole = KINDS[kind](4, **options).double()
    if whole.affine:
        nn.init.normal_(whole.weight)
        nn.init.normal_(whole.bias)
    split = lg.SyncBatchNorm.convert_sync_batchnorm(KINDS[kind](4, **options).double())
    assert isinstance(split, lg.SyncBatchNorm)
    split.load_state_dict(whole.state_dict())
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        values = 50 + torch.randn(sum(num_rows), *SHAPES[kind], generator=generator, dtype=torch.float64)
        weights = torch.randn(values.shape, generator=generator, dtype=torch.float64)
        mine = slice(sum(num_rows[:rank]), sum(num_rows[: rank + 1]))
        x, y = values.clone().requires_grad_(), values[mine].clone().requires_grad_()
        everything, part = whole(x), split(y)
        torch.testing.assert_close(part, everything[mine])
        (everything * weights).sum().backward()
        (part * weights[mine]).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(y.grad, x.grad[mine])
    for name, parameter in split.named_parameters():
        total = lg.allreduce(parameter.grad, op=lg.Sum)  # type: ignore[arg-type]
        torch.testing.assert_close(total, whole.get_parameter(name).grad)
    for name, buffer in split.named_buffers():
        torch.testing.assert_close(buffer, whole.get_buffer(name), msg=name)
    if size > 1:
        torch.testing.assert_close(split.eval()(values), whole.eval()(values))


@pytest.mark.parametrize("kind", SHAPES)
def test_equals_the_whole_batch(crew: Crew, kind: str) -> None:
    crew.run(_equals_whole_batch, kind, {}, [3, 5])


@pytest.mark.parametrize(
    "options", [{"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 1.0}]
)
def test_options(crew: Crew, options: dict[str, Any]) -> None:
    crew.run(_equals_whole_batch, "images", options, [2, 3])


@pytest.mark.parametrize("num_rows", [[4], [0, 4], [1, 1, 1]])
def test_numbers_of_rows(crew: Crew, num_rows: list[int]) -> None:
    crew.run(_equals_whole_batch, "rows", {}, num_rows, size=len(num_rows))


def _converted() -> None:
    lg.init()
    norm = nn.BatchNorm2d(2)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(norm, nn.ReLU())).eval()
    converted = lg.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    layer = model.get_submodule("1.0")
    assert isinstance(layer, lg.SyncBatchNorm)
    assert layer.weight is norm.weight
    assert not layer.training
    with pytest.raises(InputError, match="process_group"):
        lg.SyncBatchNorm.convert_sync_batchnorm(model, process_group=object())


def test_conversion(crew: Crew) -> None:
    crew.run(_converted, size=1)


def _other_dtypes_and_errors() -> None:
    lg.init()
    layer = lg.SyncBatchNorm(2)
    assert layer(torch.ones(2, 2, dtype=torch.float16)).dtype is torch.float16
    with pytest.raises(InputError, match="at least 2"):
        layer(torch.ones(2))
    with pytest.raises(InputError, match="more than 1 value"):
        layer(torch.ones(1 - lg.rank(), 2))


def test_other_dtypes_and_errors(crew: Crew) -> None:
    crew.run(_other_dtypes_and_errors)


def _in_a_network() -> None:
    """Under DistributedDataParallel it trains as one process does with all the data."""
    lg.init()
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    torch.manual_seed(0)
    split = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    model = lg.DistributedDataParallel(lg.SyncBatchNorm.convert_sync_batchnorm(split))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, model)]
    for _ in range(4):
        x = torch.randn(8, 3, dtype=torch.float64)
        whole(x).square().mean().backward()
        model(x[4 * lg.rank() :][:4]).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(split.state_dict().values(), whole.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


def test_in_a_network(crew: Crew) -> None:
    crew.run(_in_a_network)
