"""A gradient tape whose gradients are those of all workers."""

from typing import Any, Unpack

import tensorflow as tf

from legato.exchange import ExchangeOptions
from legato.tensorflow.collectives import Average, ReduceOp
from legato.tensorflow.gradients import Gradients


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc] # tensorflow ships no types
    """Around your tape, or in its place; `gradient` brings averages over all workers.

    In a `tf.function` each gradient leaves as soon as it is ready, while the rest of the backward pass runs.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape | None = None,
        *,
        op: ReduceOp = Average,
        **options: Unpack[ExchangeOptions],
    ) -> None:
        super().__init__()
        if gradtape is not None:
            self.__dict__.update(gradtape.__dict__)
        self._legato = Gradients(op, options)

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """As TensorFlow's, averaged; every worker must ask for the gradients of the same variables."""
        gradients = super().gradient(target, sources, *arguments, **options)
        flat = tf.nest.flatten(gradients)  # an absent gradient is None, which nest keeps
        return tf.nest.pack_sequence_as(gradients, self._legato.reduce(flat, tf.nest.flatten(sources)))
