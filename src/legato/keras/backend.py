"""The backend that Keras runs on, and legato's room for it."""

import keras

from legato.errors import InputError
from legato.keras.base import Backend


def backend() -> Backend:
    """Keras has one backend for the life of a process."""
    name = keras.backend.backend()
    if name == "tensorflow":
        from legato.keras.on_tensorflow import TensorFlowBackend

        return TensorFlowBackend()
    if name == "torch":
        from legato.keras.on_torch import TorchBackend

        return TorchBackend()
    if name == "jax":
        from legato.keras.on_jax import JaxBackend

        return JaxBackend()
    raise InputError(f"Keras runs on {name!r}; legato.keras works on the backends tensorflow, torch and jax")
