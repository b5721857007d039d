"""BytePS across the barrier between steps: all of `legato.byteps.torch`, and `CrossBarrier`."""

import torch
from torch import nn

from legato.byteps import torch as _whole
from legato.byteps.torch import *  # noqa: F403 - scripts import this module in place of the whole interface
from legato.torch.compat.crossing import crossing
from legato.torch.compat.optimizer import NamedParameters
from legato.torch.compression import Compression, Compressor

__all__ = [*_whole.__all__, "CrossBarrier"]  # noqa: PLE0604 - names


def CrossBarrier(  # noqa: N802 - BytePS's name
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> torch.optim.Optimizer:
    """The optimizer, whose updates wait for the next forward pass, until step `num_steps`.

    `named_parameters` name tensors in BytePS; here the model's own names are used.
    """
    del named_parameters
    return crossing(model, optimizer, num_steps, compression=compression, passes_per_step=backward_passes_per_step)
