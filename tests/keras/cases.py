"""A small network and its data, for whichever backend Keras has."""

from collections.abc import Callable

import keras
import numpy as np

from legato.transports.buffer import Array

BATCH = 8
"""Samples of each worker and step."""
EPOCHS = 5
STEPS = 10
"""Of an epoch."""

MakeOptimizer = Callable[[], keras.optimizers.Optimizer]


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=1)),
            keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=3)),
        ]
    )


def data() -> tuple[Array, Array]:
    """Samples of two workers for the steps of an epoch: those of a step lie together, each worker's among them."""
    x = np.random.default_rng(7).normal(size=(STEPS * 2 * BATCH, 6)).astype(np.float32)
    return x, x[:, :2] * 2 - x[:, 2:4]


def mine(samples: Array, rank: int) -> Array:
    """One worker's samples, step after step."""
    return samples.reshape(STEPS, 2, BATCH, -1)[:, rank].reshape(STEPS * BATCH, -1)


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adamw() -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(0.01, weight_decay=0.01)
