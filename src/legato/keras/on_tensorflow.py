"""Keras on TensorFlow: gradients leave the graph as they become ready."""

from collections.abc import Iterable
from typing import Any

import legato.tensorflow as lg
from legato.job import Job
from legato.keras.base import Optimizer
from legato.tensorflow.api import current


class TensorFlowBackend:
    init, shutdown = staticmethod(lg.init), staticmethod(lg.shutdown)

    def job(self) -> Job:
        return current().job

    def broadcast(self, variables: Iterable[Any], root_rank: int) -> None:
        lg.broadcast_variables(variables, root_rank)

    def distribute(self, optimizer: Optimizer, **options: Any) -> Optimizer:
        return lg.DistributedOptimizer(optimizer, **options)
