"""What legato.keras asks of each backend."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import keras

from legato.errors import InputError
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
