"""Collectives on tensors and variables, as Horovod and BytePS name them."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from legato.errors import InputError
from legato.exchange import ExchangeOptions, broadcast_arrays
from legato.tensorflow.api import Worker, current
from legato.tensorflow.buffers import Slots, dtype_name, spec_of
from legato.transports.buffer import Array


class ReduceOp(StrEnum):
    """What becomes of the tensors of all workers."""

    AVERAGE = "average"
    SUM = "sum"


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM


class Compression:
    """Horovod's and BytePS's names; `compression` takes every scheme of docs/compression.md."""

    none: str | None = None
    fp16: str | None = "fp16"


def reduced(average: Any, op: ReduceOp, num_workers: int) -> Any:
    """What was asked for, of an average."""
    if op not in (Average, Sum):
        raise InputError(f"op is {op!r}; accepted are Average and Sum")
    return average * tf.cast(num_workers, average.dtype) if op == Sum else average


@tf.autograph.experimental.do_not_convert
def push_pull(tensor: Any, *, name: str | None = None, op: ReduceOp = Average, compression: str | None = None) -> Any:
    """The average (or the sum) of the workers' tensors. Gradients flow through it, as through one sum of all losses.

    All workers must call it, in eager mode or in a graph. Calls with the same name follow each other; without one,
    eager calls are matched by dtype and shape, and those in a graph by the order in which they are traced.
    """
    worker = current()
    options = ExchangeOptions(compression=compression)
    with worker.typed_errors():
        tensor = tf.convert_to_tensor(tensor)
        if worker.job.size == 1 or tensor.shape.num_elements() == 0:
            return reduced(tensor, op, 1)
        label = _label(worker, name, tensor)
        slots = worker.slots(
            ("push_pull", label),
            lambda: Slots(worker.job, f"push_pull/{label}", [spec_of("tensor", tensor)], options, follows_plans=False),
        )
        return reduced(slots.push_pull(0, tensor, label), op, worker.job.size)


allreduce = push_pull


def _label(worker: Worker, name: str | None, tensor: Any) -> str:
    if name is not None:
        return name
    if not tf.executing_eagerly():
        return worker.job.name("traced")
    return f"{dtype_name(tensor.dtype)}{tensor.shape.as_list()}"


@tf.RegisterGradient("LegatoPushPull")
def _push_pull_gradient(operation: Any, gradient: Any) -> Any:
    """What a rank puts in affects the losses of all: its gradient is the average of theirs."""
    label = operation.get_attr("label").decode()
    return None, push_pull(gradient, name=f"{label}.backward")


@tf.autograph.experimental.do_not_convert
def broadcast(tensor: Any, root_rank: int = 0) -> Any:
    """The root's tensor, on every worker."""
    return _broadcast_values([tf.convert_to_tensor(tensor)], root_rank)[0]


@tf.autograph.experimental.do_not_convert
def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Overwrite variables with the root's, on every worker: before the first step, or after a checkpoint was read."""
    targets = [tensorflow_variable(variable) for variable in variables]
    if current().job.size == 1 or not targets:
        return
    values = _broadcast_values([target.read_value() for target in targets], root_rank)
    for target, value in zip(targets, values, strict=True):
        target.assign(value)


def tensorflow_variable(variable: Any) -> Any:
    """TensorFlow's own variable, inside Keras's or itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _broadcast_values(values: Sequence[Any], root_rank: int) -> Sequence[Any]:
    """Weights, not gradients: they pass through numpy, in a graph too."""
    worker = current()
    with worker.typed_errors():
        if not 0 <= root_rank < worker.job.size:
            raise InputError(f"root_rank is {root_rank}; accepted are ranks from 0 to {worker.job.size - 1}")
    if worker.job.size == 1:
        return values
    name = worker.job.name("broadcast")

    def through_numpy(*arrays: Array) -> list[Array]:
        mine = [np.array(array, copy=True) for array in arrays]  # numpy's view of a tensor is read-only
        if any(array.dtype.hasobject for array in mine):
            raise InputError("a tensor of strings cannot be broadcast; accepted are numbers")
        named = {f"{name}/{place}": array for place, array in enumerate(mine)}
        broadcast_arrays(worker.job.group, named, root_rank)
        return mine

    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array) for array in through_numpy(*(value.numpy() for value in values))]
    arrived = tf.numpy_function(through_numpy, values, [value.dtype for value in values])
    for value, each in zip(values, arrived, strict=True):
        each.set_shape(value.shape)
    return list(arrived)
