"""Divergence: ranks that average gradients hold the same weights, to the last bit. Whether they do is seen here.

A change on one rank only (a checkpoint loaded by rank 0 alone, noise, another learning rate) stays in its weights for
good, and no gradient shows it. Each rank sends one number for each parameter; nothing is compared but these.
"""

from collections.abc import Sequence

import numpy as np
import torch

from legato.errors import DivergedError
from legato.observe.clock import Gatherer
from legato.torch.sync.synchronizer import Slot

COMPARED_STEPS = (1, 3)
"""Weights are compared before these: as they were sent at the start, and as two updates left them, the first whole and
the second in pieces. Each comparison hides what a rank waits for in that step, which the choice of a transport looks
at: one of the first steps less is no loss there."""

_WORDS_PER_ROW = 128
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Comparison:
    """Of one schedule's weights, before two of the first steps or before all."""

    def __init__(self, group: Gatherer, name: str, slots: Sequence[Slot], *, always: bool) -> None:
        """`group` must be one on which no gradient is under way in an order of its own."""
        self._group = group
        self._name = name
        self._slots = slots
        self._always = always

    def before_step(self, number: int) -> None:
        """Compare, where it is time to; the first step is number 1. A DivergedError on every rank where they differ."""
        if not self._slots or (number not in COMPARED_STEPS and not self._always):
            return
        device = self._slots[0].device
        # One wait for the device, whatever the number of parameters.
        mine = torch.stack([digest(slot.in_order(slot.weight())).to(device) for slot in self._slots]).cpu().numpy()
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
    """A number that changes with any bit of a tensor without gaps, or where stretches of it change places.

    A sum of integers: exact in any order of summation, and without a copy of the tensor. It stays on the device.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.as_strided((tensor.numel(),), (1,))
    items_per_word = 8 // flat.element_size()
    if flat.storage_offset() % items_per_word:
        flat = flat.clone()
    num_rows, num_rest = divmod(len(flat), _WORDS_PER_ROW * items_per_word)
    rows = flat[: len(flat) - num_rest].view(torch.int64).view(num_rows, _WORDS_PER_ROW).sum(dim=1)
    rest = flat[len(flat) - num_rest :].view(_BITS[flat.element_size()]).sum(dtype=torch.int64)
    # Odd weights: times an even one, what differs in the highest bit only would vanish.
    return rest + (rows * (2 * torch.arange(num_rows, device=rows.device) + 1)).sum()
