"""Keras on JAX: gradients leave the compiled step as they become ready, and are averaged within it."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import legato.jax as lg
from legato.exchange import ExchangeOptions, check_options
from legato.jax.api import current
from legato.jax.buffers import Averager
from legato.job import Job
from legato.keras.base import Optimizer, fasten


class JaxBackend:
    init, shutdown = staticmethod(lg.init), staticmethod(lg.shutdown)

    def job(self) -> Job:
        return current()

    def broadcast(self, variables: Iterable[Any], root_rank: int) -> None:
        targets = list(variables)
        values = lg.broadcast([target.value for target in targets], root_rank)
        for target, value in zip(targets, values, strict=True):
            target.assign(value)

    def distribute(self, optimizer: Optimizer, **options: Any) -> Optimizer:
        check_options(options)
        fasten(optimizer, _Averaging, Averager(ExchangeOptions(**options)))  # type: ignore[typeddict-item]
        return optimizer


class _Averaging:
    """In front of an optimizer's own class. Keras traces `apply` in its compiled step, or calls it with arrays."""

    _legato: Averager

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)  # type: ignore[attr-defined]
        averaged = list(grads)
        # By place, because Keras numbers the names of layers anew in each process; in the order of the model.
        present = OrderedDict(
            (f"{place}.{variables[place].name}", gradient)
            for place, gradient in enumerate(grads)
            if gradient is not None
        )
        job = current()
        if job.size > 1 and present:
            averages = self._legato.exchange(job, present).average(present)
            for name, average in averages.items():
                averaged[int(name.partition(".")[0])] = average
        super().apply(averaged, trainable_variables)  # type: ignore[misc]
