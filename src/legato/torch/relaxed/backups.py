"""Backups: whose gradients came too late, for whoever asks and for the log."""

import logging
import weakref
from collections import Counter
from collections.abc import Sequence

from torch import nn

from legato.errors import LegatoError

_log = logging.getLogger(__name__)


class LeftOut:
    """The ranks that steps have gone on without."""

    def __init__(self) -> None:
        self._step = -1
        self._ranks: set[int] = set()
        self._num_steps: Counter[int] = Counter()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those whose gradients are not, or not all, in the last step."""
        return tuple(sorted(self._ranks))

    def note(self, step: int, ranks: Sequence[int]) -> None:
        """The average of a gradient in this step is without these ranks."""
        if step > self._step:
            self._step, self._ranks = step, set()
        for rank in set(ranks) - self._ranks:
            self._ranks.add(rank)
            self._num_steps[rank] += 1
            count = self._num_steps[rank]
            if count & (count - 1) == 0:  # the first time, the second, the fourth, ...: a log is no place for them all
                _log.info("rank %d was too slow for step %d, which went on without it: %d so far", rank, step, count)


_by_model: weakref.WeakKeyDictionary[nn.Module, LeftOut] = weakref.WeakKeyDictionary()


def attach_left_out(model: nn.Module) -> LeftOut:
    """Begin to note for a model."""
    _by_model[model] = LeftOut()
    return _by_model[model]


def left_out(model: nn.Module) -> tuple[int, ...]:
    """The ranks whose gradients came too late for the last step of a model scheduled with `backups`.

    Of the last step that this rank has received, as far as it has: after `flush`, the last one of all.
    """
    known = _by_model.get(model)
    if known is None:
        raise LegatoError("this model has no backups; call legato.torch.schedule(model, optimizer, backups=...) first")
    return known.ranks
