"""A torch model whose layers sleep for as long as they would compute, with real gradients for real hooks.

Sleeping leaves the core to the other workers and to whatever moves bytes: two cores stand for many hosts, each with an
accelerator.
"""

import os
import time
import weakref
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from legato.core import Layer, Workload

LAG_S = 0.1
"""How far a host may lag behind its device; what goes beyond holds the device up."""
WAIT_S = 1e-3
"""From here on a host has waited for something, and was not just held up for a moment."""


class _Moment(NamedTuple):
    now_s: float
    busy_s: float
    """How long this thread has run so far, or stood in line for a processor."""


class Device:
    """An emulated accelerator: it runs one layer after the other and stands still while its host waits for something.

        device   ──── f0 ────┤                  ├──── f1 ────┤──── f2 ────┤
        host     asleep      ┤ waits for a sum  ┤ hooks ┤ asleep  ┤ hooks ┤ asleep

    Real hosts run ahead of their accelerators, on processors of their own. So what one does on its training thread does
    not hold the device up, nor that it wakes up late, or finds all processors taken; only its gradients leave later.
    """

    def __init__(self) -> None:
        # Opened once, by the thread that it tells of: opening it for every layer took an eighth of a processor.
        self._line = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._line)
        self.begin()

    def begin(self) -> None:
        """Be done with everything before, however far the host lagged behind."""
        self._last = self._moment()
        self._now_s = self._last.now_s

    def spend(self, seconds: float) -> None:
        """Run for so long, and the host meanwhile sleeps. It is always the thread that made this that comes here."""
        moment = self._moment()
        waited_s = (moment.now_s - self._last.now_s) - (moment.busy_s - self._last.busy_s)
        if waited_s > WAIT_S:
            # What it waited for came no sooner: until then the device stood still, however far the host lagged behind.
            self._now_s = self._last.now_s + waited_s
        else:
            self._now_s += max(waited_s, 0.0)
        self._now_s = max(self._now_s, moment.now_s - LAG_S) + seconds
        while (left_s := self._now_s - time.monotonic()) > 0:
            time.sleep(left_s)
        self._last = self._moment()

    def _moment(self) -> _Moment:
        _, in_line_ns, _ = os.pread(self._line, 100, 0).split()
        return _Moment(time.monotonic(), int(in_line_ns) * 1e-9 + time.thread_time())


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carried: torch.Tensor, weight: torch.Tensor | None, layer: "SleepingLayer") -> torch.Tensor:
        ctx.layer = layer
        ctx.has_weight = weight is not None
        layer.device.spend(layer.forward_s)
        return carried.clone()

    @staticmethod
    def backward(ctx: Any, carried: torch.Tensor) -> Any:
        ctx.layer.device.spend(ctx.layer.backward_s)
        return carried, ctx.layer.gradient if ctx.has_weight else None, None


class SleepingLayer(nn.Module):
    """One layer: a weight of its size, whose gradient is a number of this rank's everywhere."""

    def __init__(self, layer: Layer, value: float, device: Device) -> None:
        super().__init__()
        self.forward_s = layer.forward_s
        self.backward_s = layer.backward_s
        self.device = device
        self.weight = nn.Parameter(torch.zeros(layer.num_bytes // 4)) if layer.num_bytes else None
        self.gradient = torch.full((layer.num_bytes // 4,), value)

    def forward(self, carried: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Run.apply(carried, self.weight, self)  # type: ignore[no-untyped-call]  # torch's
        return result


def sleeping_model(workload: Workload, value: float) -> nn.Sequential:
    """On a device of its own."""
    device = Device()
    return nn.Sequential(*(SleepingLayer(layer, value, device) for layer in workload.layers))


Clip = Callable[[Iterable[nn.Parameter]], torch.Tensor]
"""What a training loop does to gradients before step()."""


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, clip: Clip | None = None) -> None:
    """What a training loop does over and over."""
    optimizer.zero_grad()
    model(torch.zeros(1, requires_grad=True)).sum().backward()
    if clip is not None:
        clip(model.parameters())
    optimizer.step()


def step_times_s(
    model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int, clip: Clip | None = None
) -> list[float]:
    """Seconds from the end of one step() to the end of the next; the first step fills the pipe."""
    for layer in model.modules():
        if isinstance(layer, SleepingLayer):
            layer.device.begin()
    ends_s = []
    for _ in range(num_steps + 1):
        take_step(model, optimizer, clip)
        ends_s.append(time.monotonic())
    return [end - begin for begin, end in pairwise(ends_s)]
