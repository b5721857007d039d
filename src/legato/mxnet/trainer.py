"""Gluon's trainer over legato's engine, as BytePS has it."""

import logging
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from legato.errors import InputError
from legato.exchange import ExchangeOptions
from legato.mxnet.buffers import Slots, spec_of
from legato.mxnet.collectives import broadcast_arrays
from legato.mxnet.compression import split
from legato.mxnet.optimizer import DistributedOptimizer
from legato.mxnet.worker import current

_log = logging.getLogger(__name__)


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc] # mxnet ships no types
    """Gluon's `Trainer` whose gradients are averaged over all workers; `step` takes the batch size of this worker.

        trainer = legato.mxnet.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

    `step` returns at once. Each weight's update waits on MXNet's engine for its own gradient, and the next forward
    pass for the weight that it comes to. Parameters are the root's on every worker: those with a shape from here on,
    the others from the first step on. What comes first in `params` is most urgent.

    `compression_params` are BytePS's; `policy` and the sizes as in docs/policies.md.
    """

    _params_to_init: list[Any]

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: Mapping[str, Any] | None = None,
        *,
        policy: str | None = None,
        partition_bytes: int | str | None = None,
        credit_bytes: int | str | None = None,
    ) -> None:
        worker = current()
        compression, optimizer_params = split(compression_params, optimizer_params)
        if isinstance(optimizer, DistributedOptimizer):
            _log.warning("DistributedTrainer averages gradients itself, and takes the optimizer in its wrapper")
            optimizer = optimizer.unwrapped
        self._options = ExchangeOptions(
            policy=policy, partition_bytes=partition_bytes, credit_bytes=credit_bytes, compression=compression
        )
        self._root_rank = root_rank
        self._divisor = 1
        self._slots: Slots | None = None
        # MXNet would sort a dictionary by name; its own order is that of the layers.
        ordered = list(params.values()) if isinstance(params, Mapping | mx.gluon.ParameterDict) else params
        super().__init__(ordered, optimizer, optimizer_params or None, kvstore=None)
        for parameter in self._params:
            if len(parameter.list_ctx()) > 1:
                raise InputError(f"{parameter.name} is on {parameter.list_ctx()}; accepted is one device a worker")
        for updater in self._updaters:
            updater.aggregate_updates = False  # an update of several weights would wait for all of their gradients
        self._exchange_name = worker.job.name("trainer")
        self._init_params()

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients, and update; `batch_size` is this worker's."""
        # As in BytePS, a codec sees gradients that are divided already; otherwise the optimizer divides in its stride.
        self._divisor = batch_size if self._options["compression"] and current().job.size > 1 else 1
        try:
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._divisor = 1

    def _check_and_rescale_grad(self, scale: float) -> None:
        super()._check_and_rescale_grad(scale * self._divisor)

    def _allreduce_grads(self) -> None:
        worker = current()
        if worker.job.size == 1:
            return
        worker.check()
        arrays = [parameter.list_grad()[0] for parameter in self._params if parameter.grad_req != "null"]
        if self._slots is None:
            self._slots = self._open(arrays)
        for place, array in enumerate(arrays):
            if self._divisor != 1:
                array[:] = array / self._divisor
            self._slots.start(place, array)

    def _open(self, arrays: list[Any]) -> Slots:
        worker = current()
        specs = [spec_of(f"gradient_{place}", array) for place, array in enumerate(arrays)]
        name = self._exchange_name
        return worker.slots(name, lambda: Slots(worker.job, name, specs, self._options))

    def _init_params(self) -> None:
        """Take the root's values of parameters that have a shape; MXNet calls it again for the others."""
        known = [parameter for parameter in self._params_to_init if not parameter._deferred_init]
        self._params_to_init = [parameter for parameter in self._params_to_init if parameter._deferred_init]
        broadcast_arrays(current(), [parameter.data() for parameter in known], self._root_rank)
