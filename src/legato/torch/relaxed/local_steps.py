"""Local steps: ranks that train alone for a while, and then agree on what came of it.

weights = start ─► step ─► step ─► … ─► step ─► change = weights − start, averaged over all ranks
   ▲                                                             │
   └── start = start + change, or what an outer optimizer makes of −change as a gradient (DiLoCo) ──┘
"""

from collections.abc import Sequence

import torch

from legato.torch.relaxed.sync_mode import MakeOptimizer
from legato.torch.sync.synchronizer import Slot, Synchronizer


class LocalSteps:
    """Brings weights together after every `num_steps` steps."""

    def __init__(
        self, synchronizer: Synchronizer, slots: Sequence[Slot], num_steps: int, outer: MakeOptimizer | None
    ) -> None:
        self._synchronizer = synchronizer
        self._slots = slots
        self._starts = [slot.weight().clone() for slot in slots]
        self._num_steps = num_steps
        self._num_alone = 0
        self._outer = None if outer is None else outer(self._starts)

    def after_step(self) -> None:
        """This rank has taken a step."""
        self._num_alone += 1
        if self._num_alone == self._num_steps:
            self._meet()

    def flush(self) -> None:
        """Nothing: until the next meeting the weights are this rank's own."""

    def close(self) -> None:
        """Meet once more where steps have been taken since, so that all ranks end with the same weights."""
        if self._num_alone:
            self._meet()
        self._synchronizer.close()

    @torch.no_grad()
    def _meet(self) -> None:
        self._num_alone = 0
        weights = [slot.weight() for slot in self._slots]
        for index, (weight, start) in enumerate(zip(weights, self._starts, strict=True)):
            self._synchronizer.submit(index, weight - start)
        for index, start in enumerate(self._starts):
            self._synchronizer.wait(index)
            change = self._synchronizer.result(index)
            if self._outer is None:
                start.add_(change)
            else:
                start.grad = change.neg_()
        if self._outer is not None:
            self._outer.step()
            self._outer.zero_grad()
        self._synchronizer.confirm()
        for weight, start in zip(weights, self._starts, strict=True):
            weight.copy_(start)
