"""What legato.keras asks of each backend."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import keras

from legato.job import Job

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)


class Backend(Protocol):
    """What legato.keras needs of a framework."""

    def init(self, *, rank: int | None, num_workers: int | None, conductor: str | None) -> Job: ...
    def shutdown(self, *, now: bool) -> None: ...
    def job(self) -> Job:
        """The job that `init` has joined."""

    def broadcast(self, variables: Iterable[Any], root_rank: int) -> None:
        """Overwrite variables of Keras with the root's."""

    def distribute(self, optimizer: Optimizer, **options: Any) -> Optimizer:
        """The same optimizer, which averages gradients over the workers."""
