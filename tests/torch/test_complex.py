"""Complex parameters: averaged as pairs of reals, and equal to DDP's."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import legato.torch as lg
from tests.torch.crew import Crew


class Net(nn.Module):
    """Complex weights, one of them of no dimension, one in another order of memory, one whose gradient is a conjugate
    that autograd has not written down, and one that only rank 0 uses; and real ones."""

    def __init__(self, conjugates: bool) -> None:
        super().__init__()
        self.conjugates = conjugates
        self.first = nn.Linear(3, 4, dtype=torch.complex128)
        self.phase = nn.Parameter(torch.randn((), dtype=torch.complex128))
        self.turned = nn.Parameter(torch.randn(5, 4, dtype=torch.complex128).T)
        self.mirrored = nn.Parameter(torch.randn(5, dtype=torch.complex128))
        self.sometimes = nn.Parameter(torch.randn(5, dtype=torch.complex128))
        self.last = nn.Linear(5, 2, dtype=torch.float64)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.first(values) * self.phase
        mixed = hidden @ self.turned
        if lg.rank() == 0:
            mixed = mixed + self.sometimes
        mirrored = torch.conj(self.mirrored) if self.conjugates else self.mirrored
        return self.last(mixed.abs()) + (mirrored * 3j).real.sum()


def train(system: str, name: str, clip: Callable[..., torch.Tensor] = lg.clip_grad_norm_) -> torch.Tensor:
    """The weights after a few steps, as reals; the largest magnitude, which clips, is that of complex numbers."""
    torch.manual_seed(lg.rank())
    model: Any = Net(conjugates=name == "SGD")  # torch's Adam refuses such gradients, also under DDP
    if system == "ddp":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
    if system in ("native", "c10d"):
        model, optimizer = lg.schedule(model, optimizer, transport=system)
    elif system == "optimizer":
        lg.broadcast_parameters(model.state_dict())
        optimizer = lg.DistributedOptimizer(optimizer, model.named_parameters())
    elif system == "wrapper":
        model = lg.DistributedDataParallel(model)
    for step in range(5):
        generator = torch.Generator().manual_seed(10 * step + lg.rank())
        optimizer.zero_grad()
        model(torch.randn(6, 3, dtype=torch.complex128, generator=generator)).square().mean().backward()
        if system == "optimizer":
            optimizer.synchronize()
        if name != "SGD":  # nor does torch clip them
            clip(model.parameters(), 0.1, norm_type=math.inf)
        with optimizer.skip_synchronize() if system == "optimizer" else nullcontext():
            optimizer.step()
    return torch.cat(
        [torch.view_as_real(each.detach().to(torch.complex128)).reshape(-1) for each in model.parameters()]
    ).clone()


def compare(name: str) -> dict[str, float]:
    """How far each way is from DDP."""
    lg.init()
    dist.init_process_group("gloo")
    expected = train("ddp", name, nn.utils.clip_grad_norm_)
    assert expected.isfinite().all()
    ways = ("native", "c10d", "optimizer", "wrapper")
    return {way: (train(way, name) - expected).abs().max().item() for way in ways}


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_equal_to_ddp(crew: Crew, name: str) -> None:
    for differences in crew.run(compare, name):
        assert set(differences.values()) == {0.0}, differences


class Negated(torch.autograd.Function):
    """Whose gradient is a view of memory that holds the negative of it."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        del ctx
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        del ctx
        return torch._neg_view(gradients[0].clone())


class Negating(nn.Linear):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (Negated.apply(self.weight) * values).sum()  # type: ignore[no-untyped-call]


def negated(way: str) -> list[float]:
    lg.init()
    dist.init_process_group("gloo")
    model: Any = Negating(3, 1, bias=False)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
    if way == "optimizer":
        optimizer = lg.DistributedOptimizer(optimizer, model.named_parameters())
    else:
        lg.schedule(model, optimizer, transport=way)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor(lg.rank() + 1.0)).backward()
        optimizer.step()
    gradient = model.weight.grad
    return [float(each) for each in gradient.flatten()]


@pytest.mark.parametrize("way", ["native", "c10d", "optimizer"])
def test_a_gradient_whose_memory_holds_its_negative(crew: Crew, way: str) -> None:
    assert crew.run(negated, way) == [[-1.5] * 3] * 2
