"""Buffers: from a tensor's memory to the engine and back, through operations of TensorFlow that are ours (native/)."""

import importlib.util
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from legato import _native
from legato.core import Plan
from legato.errors import InputError
from legato.exchange import ExchangeOptions, TensorSpec, open_exchange
from legato.job import Job
from legato.transports.declaration import ITEM_BYTES


def _load_operations() -> Any:
    found = importlib.util.find_spec("legato.tensorflow._ops")
    if found is None or found.origin is None:
        raise ImportError(
            "legato was built without TensorFlow's operations; install TensorFlow first, then legato from its "
            "source with `pip install --no-build-isolation .`"
        )
    try:
        return tf.load_op_library(found.origin)
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"legato's operations were built for another TensorFlow than {tf.__version__}; build legato again: {error}"
        ) from None


_operations = _load_operations()


def dtype_name(dtype: tf.DType) -> str:
    """The name that ranks agree on: `float32` for tf.float32."""
    if dtype.name not in ITEM_BYTES:
        raise InputError(f"dtype {dtype.name} cannot be averaged; accepted are {', '.join(ITEM_BYTES)}")
    return str(dtype.name)


def spec_of(name: str, tensor: Any) -> TensorSpec:
    """What all ranks must say of a tensor before it travels."""
    if not tensor.shape.is_fully_defined():
        raise InputError(f"tensor {name!r} has the shape {tensor.shape}; give it one without unknown dimensions")
    return TensorSpec(name, tuple(tensor.shape.as_list()), dtype_name(tensor.dtype))


class Slots:
    """The tensors of one exchange, each in a slot of its own. Every rank makes the same ones.

    A slot's operations run in the order of the program, in a graph too; different slots do not wait for each other.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        specs: Sequence[TensorSpec],
        options: ExchangeOptions,
        *,
        follows_plans: bool = True,
    ) -> None:
        self._specs = specs
        self._exchange = open_exchange(job, specs, name=name, follows_plans=follows_plans, **options)
        api = _native.collector_api()
        with tf.init_scope(), tf.device("CPU:0"):
            self._handles = [
                _operations.legato_slot(api=api, collector=self._exchange.address, index=index, label=spec.name)
                for index, spec in enumerate(specs)
            ]

    def __len__(self) -> int:
        return len(self._specs)

    def start(self, index: int, tensor: Any) -> None:
        """Give a tensor to the engine; returns at once."""
        _operations.legato_start(slot=self._handles[index], tensor=tensor)

    def finish(self, index: int) -> Any:
        """The average of what was started last."""
        spec = self._specs[index]
        return _operations.legato_finish(slot=self._handles[index], T=tf.as_dtype(spec.dtype), shape=spec.shape)

    def started(self, index: int) -> Any:
        """Whether there is something to finish: a scalar tensor."""
        return _operations.legato_started(slot=self._handles[index])

    def push_pull(self, index: int, tensor: Any, label: str) -> Any:
        """Start and finish in one; gradients flow through it."""
        return _operations.legato_push_pull(slot=self._handles[index], tensor=tensor, label=label)

    def set_order(self, order: Sequence[int]) -> None:
        """What is used first, most urgent first; every rank calls it."""
        self._exchange.set_order(order)

    @property
    def plan(self) -> Plan:
        """What the newest step follows."""
        return self._exchange.plan

    def check(self) -> None:
        """Raise the job's error, if it has failed."""
        self._exchange.check()

    def close(self) -> None:
        """Graphs that are traced keep the slots: from here on they answer with an error."""
        with tf.init_scope():
            for handle in self._handles:
                _operations.legato_close(slot=handle)
        self._exchange.close()
