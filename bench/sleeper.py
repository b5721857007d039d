"""A torch model whose layers sleep for as long as they would compute, with real gradients for real hooks.

Sleeping leaves the core to the other workers and to whatever moves bytes: two cores stand for many devices. What a
system does on the training thread (copies, updates) is not hidden: it comes on top, as it does in a real step.
"""

import time
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from legato.core import Layer, Workload


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carried: torch.Tensor, weight: torch.Tensor | None, layer: "SleepingLayer") -> torch.Tensor:
        ctx.layer = layer
        ctx.has_weight = weight is not None
        time.sleep(layer.forward_s)
        return carried.clone()

    @staticmethod
    def backward(ctx: Any, carried: torch.Tensor) -> Any:
        time.sleep(ctx.layer.backward_s)
        return carried, ctx.layer.gradient if ctx.has_weight else None, None


class SleepingLayer(nn.Module):
    """One layer: a weight of its size, whose gradient is a number of this rank's everywhere."""

    def __init__(self, layer: Layer, value: float) -> None:
        super().__init__()
        self.forward_s = layer.forward_s
        self.backward_s = layer.backward_s
        self.weight = nn.Parameter(torch.zeros(layer.num_bytes // 4)) if layer.num_bytes else None
        self.gradient = torch.full((layer.num_bytes // 4,), value)

    def forward(self, carried: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Sleep.apply(carried, self.weight, self)  # type: ignore[no-untyped-call]  # torch's
        return result


def sleeping_model(workload: Workload, value: float) -> nn.Sequential:
    return nn.Sequential(*(SleepingLayer(layer, value) for layer in workload.layers))


def step_times_s(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> list[float]:
    """Seconds from the end of one step() to the end of the next."""
    ends_s = []
    for _ in range(num_steps + 1):
        optimizer.zero_grad()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        optimizer.step()
        ends_s.append(time.monotonic())
    return [end - begin for begin, end in pairwise(ends_s)]
