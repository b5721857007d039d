"""Keras on TensorFlow: gradients leave the graph as they become ready."""

from collections.abc import Iterable
from typing import Any

import legato.tensorflow as lg
from legato.job import Job
from legato.keras.base import Optimizer
from legato.tensorflow.api import current


class TensorFlowBackend:
    def init(self, *, rank: int | None, num_workers: int | None, conductor: str | None) -> Job:
        return lg.init(rank=rank, num_workers=num_workers, conductor=conductor)

    def shutdown(self, *, now: bool) -> None:
        lg.shutdown(now=now)

    def job(self) -> Job:
        return current().job

    def broadcast(self, variables: Iterable[Any], root_rank: int) -> None:
        lg.broadcast_variables(variables, root_rank)

    def distribute(self, optimizer: Optimizer, **options: Any) -> Optimizer:
        return lg.DistributedOptimizer(optimizer, **options)
