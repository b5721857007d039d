"""Gradients that are not finite: found before any of them is applied, by all ranks in the same step.

One rank's NaN is every rank's, as soon as it is averaged, and no rank can tell from the average whose it was. So each
keeps the sum over each of its own gradients, the cheapest number that is not finite where an item is not. What is told
of the averages (measures.py, or the averages themselves where nobody measures) says on all ranks alike whether anybody
has to be asked.
"""

import logging
from collections.abc import Iterable

import numpy as np
import torch

from legato.errors import NonFiniteError
from legato.observe.clock import Gatherer
from legato.torch.scheduling.gradients import GradientState
from legato.torch.scheduling.parameters import ScheduledParameter, ScheduledParameters

_log = logging.getLogger(__name__)

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""Sums over many finite items of these could overflow in their own type."""


class NonFinite:
    """The check of one schedule; `skips` a step whose gradients are not finite, otherwise ends the job."""

    def __init__(self, group: Gatherer, name: str, *, skips: bool) -> None:
        """`group` must be one on which no gradient is under way in an order of its own."""
        self._group = group
        self._name = name
        self._skips = skips
        self._own: dict[int, torch.Tensor] = {}
        """The sums over this rank's gradients, by index: on their devices, and looked at only if need be."""

    def note(self, index: int, gradient: torch.Tensor | None) -> None:
        """A gradient that is about to travel, and to become an average where it lies."""
        if gradient is None or not gradient.numel():
            self._own.pop(index, None)
            return
        values = gradient._values() if gradient.is_sparse else gradient
        self._own[index] = values.detach().sum(dtype=_WIDER.get(values.dtype))

    def forbids(self, parameters: ScheduledParameters, number: int) -> bool:
        """Whether step `number` must not be taken. A NonFiniteError on every rank where it ends the job."""
        parameters.synchronizer.set_measured()
        bad = [each for each in parameters.all if not _is_finite(parameters, each)]
        if not bad:
            return False
        error = self._explain(len(parameters.all), bad, number)
        if not self._skips:
            raise error
        _log.warning("step %d is skipped: %s", number, error)
        return True

    def _explain(self, num_parameters: int, bad: list[ScheduledParameter], number: int) -> NonFiniteError:
        mine = np.array([self._is_culprit(index) for index in range(num_parameters)], np.uint8)
        by_rank = self._group.allgather(self._name, mine).reshape(self._group.size, -1)
        # The first that some rank has from itself, where one does: other averages may have overflowed since.
        first = next((each for each in bad if by_rank[:, each.index].any()), bad[0])
        ranks = [int(rank) for rank in np.flatnonzero(by_rank[:, first.index])]
        name = first.slot.name
        whose = f"of {_listed(ranks)} is" if ranks else "is finite on every rank, but their average is"
        more = f" (and of {len(bad) - 1} other parameters)" if len(bad) > 1 else ""
        return NonFiniteError(
            f"the gradient of parameter {name!r}{more} {whose} not finite in step {number}; look at the data and the "
            "loss there, lower the learning rate or the loss scale, or set LEGATO_NONFINITE to skip or pass",
            rank=ranks[0] if ranks else None,
            tensor=name,
            step=number,
        )

    def _is_culprit(self, index: int) -> bool:
        own = self._own.get(index)
        return own is not None and not bool(torch.isfinite(own))


def _is_finite(parameters: ScheduledParameters, each: ScheduledParameter) -> bool:
    if each.state is GradientState.IN_FLIGHT and parameters.synchronizer.is_measured(each.index):
        return parameters.measure(each).is_finite
    parameters.settle(each)
    if each.gradient is None or each.state is GradientState.LOCAL:
        return True
    values = each.gradient._values() if each.gradient.is_sparse else each.gradient
    return bool(torch.isfinite(values).all())


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)
