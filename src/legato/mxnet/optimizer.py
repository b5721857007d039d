"""An optimizer of MXNet's whose gradients are averaged first, as BytePS has it."""

from collections.abc import Mapping
from typing import Any

import mxnet as mx

from legato.errors import InputError
from legato.exchange import ExchangeOptions, TensorSpec
from legato.mxnet.buffers import Slots, spec_of
from legato.mxnet.compression import checked
from legato.mxnet.worker import current

_OWN = frozenset({"_optimizer", "_options", "_unopened", "_places"})


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc] # mxnet ships no types
    """Around an optimizer, for `Module.fit` or a `Trainer` without a KVStore: updates use averages over all workers.

        optimizer = legato.mxnet.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1, rescale_grad=1 / batch))
        module.fit(data, optimizer=optimizer, kvstore=None)

    Whatever else is read or set is the optimizer's own. All gradients of the first step take part in every step.
    """

    aggregate_num = 0
    """An update of several weights would wait for the gradients of all of them."""

    def __init__(
        self,
        optimizer: Any,
        compression_params: Mapping[str, Any] | None = None,
        *,
        policy: str | None = None,
        partition_bytes: int | str | None = None,
        credit_bytes: int | str | None = None,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InputError(f"optimizer is a {type(optimizer).__name__}; accepted are optimizers of MXNet's")
        if isinstance(optimizer, DistributedOptimizer):
            raise InputError("the optimizer is a DistributedOptimizer already; wrap it once")
        self._optimizer = optimizer
        self._options = ExchangeOptions(
            policy=policy,
            partition_bytes=partition_bytes,
            credit_bytes=credit_bytes,
            compression=checked(compression_params),
        )
        self._unopened: dict[int, TensorSpec] = {}
        self._places: dict[int, tuple[Slots, int]] = {}

    @property
    def unwrapped(self) -> Any:
        """The optimizer inside."""
        return self._optimizer

    def create_state(self, index: int, weight: Any) -> Any:
        self._expect(index, weight)
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        self._expect(index, weight)
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    # ---- averages ----

    def _expect(self, index: int, weight: Any) -> None:
        """MXNet makes the states of all weights before it updates the first: so all gradients are known by then."""
        if index not in self._places:
            self._unopened[index] = spec_of(f"gradient_{index}", weight)

    def _average(self, index: Any, gradient: Any) -> None:
        worker = current()
        if worker.job.size == 1:
            return
        worker.check()
        indices, gradients = (index, gradient) if isinstance(index, list | tuple) else ([index], [gradient])
        for each, array in zip(indices, gradients, strict=True):
            if each not in self._places:
                self._unopened.setdefault(each, spec_of(f"gradient_{each}", array))
                self._open()
            slots, place = self._places[each]
            slots.start(place, array)

    def _open(self) -> None:
        names = list(self._optimizer.idx2name.values())
        if len(set(names)) < len(names):
            raise InputError("a parameter is on several devices; accepted is one device a worker")
        worker = current()
        name = worker.job.name("optimizer")
        opened = dict(sorted(self._unopened.items()))
        slots = worker.slots(name, lambda: Slots(worker.job, name, [*opened.values()], self._options))
        self._places.update({index: (slots, place) for place, index in enumerate(opened)})
        self._unopened.clear()
