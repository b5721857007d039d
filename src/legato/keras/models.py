"""Saved models come back with a distributed optimizer."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from legato.keras.api import DistributedOptimizer


def load_model(
    filepath: str | os.PathLike[str], custom_objects: Mapping[str, Any] | None = None, **options: Any
) -> keras.Model:
    """`keras.saving.load_model`, with its optimizer distributed; `options` are those of `DistributedOptimizer`.

    A model is saved as if legato were not there: Keras's own `load_model` reads it too.
    """
    model = keras.saving.load_model(filepath, custom_objects=custom_objects)
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, **options)
    return model
