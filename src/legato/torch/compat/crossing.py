"""Optimizers that cross the barrier between steps, as BytePS's and ByteScheduler's scripts ask for them."""

import itertools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn

from legato.errors import InputError
from legato.torch import api
from legato.torch.compat.optimizer import Distributed, undistribute
from legato.torch.compression import Compressing, Compression


def crossing(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    num_steps: int,
    *,
    compression: Compressing = None,
    passes_per_step: int = 1,
) -> torch.optim.Optimizer:
    """The optimizer, scheduled together with its model: as `schedule`, which see.

    From step `num_steps` on nothing is left for the next forward pass. An optimizer that is a `DistributedOptimizer`
    becomes a plain one first: scheduling does what that does.
    """
    if isinstance(optimizer, Distributed):
        given = undistribute(optimizer)
        if given.factors != (1.0, 1.0):
            raise InputError("a scheduled optimizer averages gradients; use op=Average without a predivide factor")
        if compression in (None, Compression.none):
            compression = given.compression
        passes_per_step = max(passes_per_step, given.passes_per_step)
    api.schedule(model, optimizer, compression=compression, passes_per_step=passes_per_step)
    if api.size() > 1:
        _count_steps(optimizer, num_steps, lambda: api.flush(model))
    return optimizer


def _count_steps(optimizer: torch.optim.Optimizer, num_steps: int, flush: Callable[[], None]) -> None:
    """Have step() leave nothing undone from the `num_steps`-th on."""
    scheduled_step, steps = optimizer.step, itertools.count(1)

    def step(optimizer: torch.optim.Optimizer, *arguments: Any, **keywords: Any) -> Any:
        del optimizer
        result = scheduled_step(*arguments, **keywords)
        if next(steps) >= num_steps:
            flush()
        return result

    # A bound method like the one it covers: LR schedulers take it apart and bind it again.
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
