"""A crew whose processes have Keras, on a backend of choice."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.crew import Crew, leaving


@contextmanager
def _keras() -> Iterator[None]:
    import keras

    import legato.keras as lg

    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    with leaving(lg):
        yield


def keras_crew(backend: str) -> Crew:
    quiet: dict[str, Any] = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    return Crew(_keras, KERAS_BACKEND=backend, **quiet)


@functools.cache
def shared_crew() -> Crew:
    """Two processes for all tests of one run: TensorFlow takes seconds to load."""
    return keras_crew("tensorflow")
