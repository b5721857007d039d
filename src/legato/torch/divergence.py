"""Divergence: ranks that average gradients hold the same weights, to the last bit. Whether they do is seen here.

A change on one rank only (a checkpoint loaded by rank 0 alone, noise, another learning rate) stays in its weights for
good, and no gradient shows it. Each rank sends one number for each parameter; nothing is compared but these.
"""

from collections.abc import Sequence

import numpy as np
import torch

from legato.errors import DivergedError
from legato.torch.agreement import Gatherer
from legato.torch.synchronizer import Slot

FIRST_STEPS = 3
"""Weights are compared before each of these: as they were sent at the start, and as the first two updates left them."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Comparison:
    """Of one schedule's weights, before the first steps or before all."""

    def __init__(self, group: Gatherer, name: str, slots: Sequence[Slot], *, always: bool) -> None:
        """`group` must be one on which no gradient is under way in an order of its own."""
        self._group = group
        self._name = name
        self._slots = slots
        self._always = always

    def before_step(self, number: int) -> None:
        """Compare, where it is time to; the first step is number 1. A DivergedError on every rank where they differ."""
        if not self._slots or (number > FIRST_STEPS and not self._always):
            return
        device = self._slots[0].device
        # One wait for the device, whatever the number of parameters.
        mine = torch.stack([digest(slot.parameter).to(device) for slot in self._slots]).cpu().numpy()
        by_rank = self._group.allgather(self._name, mine).reshape(self._group.size, -1)
        differing = by_rank != by_rank[0]
        if differing.any():
            self._stop(differing, number - 1)

    def _stop(self, differing: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]", num_steps: int) -> None:
        index = int(differing.any(axis=0).argmax())
        ranks = [int(rank) for rank in np.flatnonzero(differing[:, index])]
        name = self._slots[index].name
        others = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        raise DivergedError(
            f"parameter {name!r} of {others} is not that of rank 0 after {num_steps} step{'s' * (num_steps != 1)}, and "
            f"{int(differing.any(axis=0).sum())} of {len(self._slots)} parameters differ; change weights and "
            "hyper-parameters on all ranks alike, and load checkpoints before schedule() or on every rank "
            "(LEGATO_CHECK=1 compares before every step, 0 never)",
            rank=ranks[0],
            tensor=name,
            step=num_steps,
        )


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """A number that changes with any bit of a tensor, or where rows change places; it stays on the device.

    A sum of integers: exact in any order of summation and of memory, and without a copy of the tensor.
    """
    bits = tensor.detach().view(_BITS[tensor.element_size()])
    if bits.dim() < 2:
        return bits.sum(dtype=torch.int64)
    rows = bits.sum(dim=tuple(range(1, bits.dim())), dtype=torch.int64)
    return (rows * torch.arange(1, len(rows) + 1, device=rows.device)).sum()
