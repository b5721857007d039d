"""An optimizer whose updates use the gradients of all workers."""

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack

import keras
import tensorflow as tf

from legato.errors import InputError
from legato.exchange import ExchangeOptions
from legato.tensorflow.collectives import Average, ReduceOp
from legato.tensorflow.gradients import Gradients

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)


def DistributedOptimizer(  # noqa: N802 - Horovod's and BytePS's name
    optimizer: Optimizer,
    *,
    op: ReduceOp = Average,
    **options: Unpack[ExchangeOptions],
) -> Optimizer:
    """The same optimizer, which averages gradients over all workers before it applies them; for any of Keras's."""
    fasten(optimizer, _Averaging, Gradients(op, options))
    return optimizer


class _Averaging:
    """In front of an optimizer's own class."""

    _legato: Gradients

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)  # type: ignore[attr-defined]
        reduced = self._legato.reduce(list(grads), variables) if len(grads) else grads
        super().apply(reduced, trainable_variables)  # type: ignore[misc]


def fasten(optimizer: Any, mixin: type, state: object) -> None:
    """Put `mixin` in front of the optimizer's class. Its name stays, so that a saved model loads without legato."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}; accepted are those of keras.optimizers")
    if hasattr(optimizer, "_legato"):
        raise InputError("this optimizer is already distributed; wrap it once")
    own = type(optimizer)
    names = {"__module__": own.__module__, "__qualname__": own.__qualname__}
    object.__setattr__(optimizer, "_legato", state)  # not Keras's, which would look for variables in it
    optimizer.__class__ = type(own.__name__, (mixin, own), names)


def unfasten(optimizer: Any) -> None:
    """The optimizer as it was."""
    optimizer.__class__ = type(optimizer).__mro__[2]
    object.__delattr__(optimizer, "_legato")
