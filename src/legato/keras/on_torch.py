"""Keras on torch: its trainer hands over all gradients after backward, and they travel together."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

import legato.torch as lg
from legato.errors import InputError
from legato.job import Job
from legato.keras.base import Optimizer, fasten
from legato.torch.api import current
from legato.torch.compat.collectives import grouped_allreduce_


class TorchBackend:
    init, shutdown = staticmethod(lg.init), staticmethod(lg.shutdown)

    def job(self) -> Job:
        return current()

    def broadcast(self, variables: Iterable[Any], root_rank: int) -> None:
        values = [(f"{place}.{each.name}", each.value.data) for place, each in enumerate(variables)]
        lg.broadcast_parameters(values, root_rank=root_rank)

    def distribute(self, optimizer: Optimizer, **options: Any) -> Optimizer:
        unknown = ", ".join(options)
        if unknown:
            raise InputError(f"{unknown}: not on the torch backend, which has no options")
        fasten(optimizer, _Averaging, current().name("keras"))
        return optimizer


class _Averaging:
    """In front of an optimizer's own class."""

    _legato: str

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        present = [gradient for gradient in grads if gradient is not None]
        if current().size > 1 and present:
            with torch.no_grad():
                grouped_allreduce_(present, name=self._legato)
        super().apply(grads, trainable_variables)  # type: ignore[misc]
