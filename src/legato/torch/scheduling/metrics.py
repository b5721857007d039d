"""Metrics of gradients: their norm, and how noisy they are.

The simple noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), appendix A.1: the
batch at which noise and signal of a gradient are alike. Below it, twice the batch needs about half the steps. It comes
from gradients of two batches, and a step has both: each of n ranks has a gradient of its b samples, and their average
is one of n·b samples. With `own` the mean over ranks of |g_rank|², and `mean` the |ḡ|² of the average:

    |G|² ≈ (n·mean − own) / (n − 1)          the gradient without noise
    tr Σ ≈ n·b·(own − mean) / (n − 1)        the variance of a sample's gradient, summed over parameters
    noise scale = tr Σ / |G|²                in samples; numerator and denominator as moving averages

Both estimates are linear in `own`, so a rank keeps the moving average of its own, and ranks meet when somebody reads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato.errors import InputError
from legato.observe.clock import Gatherer
from legato.torch.sync.synchronizer import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a job knows of its gradients: the same on all ranks."""

    num_steps: int
    """Steps that have been watched."""
    gradient_norm: float
    """Of the last one's averages, before they were clipped or unscaled; NaN before there was one."""
    gradient_noise_scale: float
    """In samples. NaN before there was a step, infinite where noise hides the gradient."""


@dataclass(slots=True)
class _Step:
    """A step of which some averages are not here."""

    squares: list[torch.Tensor]
    """Own and average, of each gradient that is here."""
    num_left: int


class GradientWatch:
    """Squares the gradients of one schedule, before they are submitted and when their averages come home.

    On an accelerator nothing waits for it until somebody reads.
    """

    def __init__(self, group: Gatherer, name: str, slots: Sequence[Slot], *, batch_size: float, decay: float) -> None:
        """`group` must be one on which no gradient is under way in an order of its own."""
        if not batch_size > 0:
            raise InputError(f"batch_size={batch_size} must be more than 0: the samples of one rank in one step")
        if not 0 <= decay < 1:
            raise InputError(f"decay={decay}; accepted is 0 <= decay < 1: 0 is the last step alone")
        self._group = group
        self._name = name
        self._batch_size = batch_size
        self._decay = decay
        self._own: list[torch.Tensor | None] = [None] * len(slots)
        """Of what was submitted last."""
        self._num_home = [0] * len(slots)
        """Steps of each gradient that have come home."""
        self._steps: dict[int, _Step] = {}
        self._device = slots[0].device
        self._moving = torch.zeros(2, dtype=torch.float64, device=self._device)
        self._last = torch.full((2,), math.nan, dtype=torch.float64, device=self._device)
        self._num_steps = 0

    def submitted(self, index: int, gradient: torch.Tensor | None) -> None:
        """This rank's own gradient is about to leave; None where it has none."""
        self._own[index] = self._square(gradient)

    def averaged(self, index: int, average: torch.Tensor | None) -> None:
        """It has come home, and nobody has changed it yet."""
        own = self._own[index]
        if own is None:
            return  # it left before anybody watched
        number = self._num_home[index]
        self._num_home[index] += 1
        step = self._steps.get(number)
        if step is None:
            zero = torch.zeros(2, dtype=torch.float64, device=self._device)
            step = self._steps[number] = _Step([zero] * len(self._own), len(self._own))
        step.squares[index] = torch.stack([own, self._square(average)])
        step.num_left -= 1
        if step.num_left == 0:
            self._add(self._steps.pop(number))

    def read(self) -> Metrics:
        """Every rank calls it, after the same step."""
        mine = torch.stack([self._moving, self._last]).cpu().numpy().reshape(1, 4)
        by_rank = self._group.allgather(self._name, mine).reshape(self._group.size, 4)
        own, mean, last = float(by_rank[:, 0].mean()), float(by_rank[0, 1]), float(by_rank[0, 3])
        return Metrics(
            num_steps=self._num_steps,
            gradient_norm=math.sqrt(last),
            gradient_noise_scale=noise_scale(own, mean, self._group.size, self._batch_size),
        )

    def _add(self, step: _Step) -> None:
        squares = torch.stack(step.squares).sum(0)
        moved = self._decay * self._moving + (1 - self._decay) * squares
        # A step with an overflow says nothing; whether there was one, all ranks see at the average.
        self._moving = torch.where(squares[1].isfinite(), moved, self._moving)
        self._last = squares
        self._num_steps += 1

    def _square(self, gradient: torch.Tensor | None) -> torch.Tensor:
        if gradient is None:
            return torch.zeros((), dtype=torch.float64, device=self._device)
        values = gradient.detach()
        if values.is_sparse:
            values = values.coalesce().values()
        if values.is_complex():
            values = torch.view_as_real(values.resolve_conj())
        norm = torch.linalg.vector_norm(values, dtype=torch.float64)
        square: torch.Tensor = norm.square()
        return square.to(self._device, non_blocking=True)


def noise_scale(own: float, mean: float, num_ranks: int, batch_size: float) -> float:
    """From the squared norms of one rank's gradient and of the average of all."""
    if not own > 0:
        return math.nan
    signal = (num_ranks * mean - own) / (num_ranks - 1)
    noise = num_ranks * batch_size * (own - mean) / (num_ranks - 1)
    return noise / signal if signal > 0 else math.inf
