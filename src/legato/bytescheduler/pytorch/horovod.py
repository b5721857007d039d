"""ByteScheduler on top of Horovod's interface for PyTorch."""

import torch
from torch import nn

from legato.torch.compat.crossing import crossing


def init() -> None:
    """Nothing: ByteScheduler takes hooks off Horovod's optimizers here, and `ScheduledOptimizer` does so itself."""


def ScheduledOptimizer(  # noqa: N802 - ByteScheduler's name
    model: nn.Module, hvd_opt: torch.optim.Optimizer, num_steps: int = 10**6
) -> torch.optim.Optimizer:
    """The optimizer, whose updates wait for the next forward pass, until step `num_steps`."""
    return crossing(model, hvd_opt, num_steps)
