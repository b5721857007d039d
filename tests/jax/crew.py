"""A crew whose processes have JAX."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.crew import Crew, leaving


@contextmanager
def _job() -> Iterator[None]:
    import legato.jax as lg

    with leaving(lg):
        lg.init()
        yield


def jax_crew() -> Crew:
    """What it plays is in a job from the start."""
    return Crew(_job)
