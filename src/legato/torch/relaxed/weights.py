"""Weights: a model whose optimizer steps alone, on this rank's own gradients; afterwards the weights are exchanged."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from legato.torch.scheduling.attachments import add_owner, cover_step, refuse, remove_owner, uncover_step
from legato.torch.scheduling.modules import Enrolment
from legato.torch.sync.synchronizer import Slot


class Exchange(Protocol):
    """What becomes of the steps that the ranks take alone."""

    def after_step(self) -> None:
        """This rank's optimizer has stepped."""

    def flush(self) -> None:
        """Take what the others have sent, as far as it is under way."""

    def close(self) -> None:
        """The last exchange: afterwards all ranks have the same weights."""


class WeightSchedule:
    """One model, its optimizer and the exchange of its weights; `take_off` takes them apart again.

    The optimizer keeps its class, its state and its `param_groups`; only its `step` is covered, on this one object.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, exchange: Exchange, slots: Sequence[Slot]
    ) -> None:
        self.slots = slots
        self._model = model
        self._optimizer = optimizer
        self._exchange = exchange
        self._enrolment = Enrolment(model, optimizer)
        self._whole_step = cover_step(optimizer, self._step)
        add_owner(model, self)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nothing: gradients stay on this rank anyway."""
        yield

    def flush(self) -> None:
        self._exchange.flush()

    def remove(self) -> None:
        """The job ends: exchange a last time, and leave an optimizer that refuses to step alone."""
        self.take_off()
        cover_step(self._optimizer, refuse)

    def let_go(self) -> None:
        """The job is left at once: the weights stay as they are."""
        cover_step(self._optimizer, refuse)

    def take_off(self) -> None:
        """Exchange a last time, then leave model and optimizer as they were."""
        remove_owner(self._model, self)
        uncover_step(self._optimizer)
        self._exchange.close()

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        self._enrolment.check()
        result = self._whole_step() if closure is None else self._whole_step(closure)
        self._exchange.after_step()
        return result
