"""What a training script calls: join the job, and wrap the optimizer."""

from collections.abc import Iterable
from typing import Any

from legato.job import Job
from legato.keras.backend import backend
from legato.keras.base import Optimizer


def init(*, rank: int | None = None, num_workers: int | None = None, conductor: str | None = None) -> Job:
    """Join the job that the environment describes (torchrun, mpirun, srun, horovodrun, BytePS), or stand alone."""
    return backend().init(rank=rank, num_workers=num_workers, conductor=conductor)


def shutdown(*, now: bool = False) -> None:
    """Leave the job, when everybody does; with `now`, at once."""
    backend().shutdown(now=now)


def rank() -> int:
    return backend().job().rank


def size() -> int:
    return backend().job().size


def local_rank() -> int:
    return backend().job().settings.local_rank


def local_size() -> int:
    return backend().job().settings.local_size


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Overwrite variables with the root's, on every worker."""
    if size() > 1:
        backend().broadcast(variables, root_rank)


def DistributedOptimizer(optimizer: Optimizer, **options: Any) -> Optimizer:  # noqa: N802 - Horovod's and BytePS's name
    """The same optimizer, which averages gradients over all workers before it applies them.

    On TensorFlow and JAX it takes the options of that room's `DistributedOptimizer`; on torch it has none.
    """
    return backend().distribute(optimizer, **options)
