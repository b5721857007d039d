"""A small network, its data, and what one process with everybody's data would learn."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import legato.tensorflow as lg
from legato.transports.buffer import Array

STEPS = 50
BATCH = 8
"""Samples of each worker and step."""
TOLERANCE = 2e-5
"""In float32, between one sum over a joined batch and two over halves of it, after 50 steps."""

MakeOptimizer = Callable[[], keras.optimizers.Optimizer]


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=1)),
            keras.layers.Dense(16, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=2)),
            keras.layers.Dense(2, kernel_initializer=keras.initializers.GlorotUniform(seed=3)),
        ]
    )


def data(num_workers: int = 2) -> tuple[Array, Array]:
    """Samples of all workers for all steps: those of a step lie together, each worker's among them."""
    x = np.random.default_rng(7).normal(size=(STEPS * num_workers * BATCH, 6)).astype(np.float32)
    return x, x[:, :2] * 2 - x[:, 2:4]


def mine(samples: Array, rank: int, num_workers: int = 2) -> Array:
    """One worker's samples, step after step."""
    return samples.reshape(STEPS, num_workers, BATCH, -1)[:, rank].reshape(STEPS * BATCH, -1)


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adamw() -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(0.01, weight_decay=0.01, clipnorm=1.0)


def decaying() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.8))


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.square(model(x) - y))


@functools.cache
def alone(make: MakeOptimizer) -> tuple[list[float], list[Array]]:
    """Losses and weights of one process on the joined batches."""
    model, optimizer = network(), make()
    x, y = data()

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    size = 2 * BATCH
    joined = [(tf.constant(x[at : at + size]), tf.constant(y[at : at + size])) for at in range(0, len(x), size)]
    losses = [float(step(*each)) for each in joined]
    return losses, model.get_weights()


def batches() -> list[tuple[Any, Any]]:
    """This worker's, for each step."""
    x, y = (mine(samples, lg.rank()) for samples in data())
    return [(tf.constant(x[at : at + BATCH]), tf.constant(y[at : at + BATCH])) for at in range(0, STEPS * BATCH, BATCH)]


def check(losses: list[float], weights: list[Array], make: MakeOptimizer) -> None:
    """The mean of the workers' losses, and the weights of each, are those of one process."""
    expected_losses, expected = alone(make)
    averaged = lg.push_pull(tf.constant(losses, tf.float64)).numpy()
    np.testing.assert_allclose(averaged, expected_losses, rtol=TOLERANCE, atol=TOLERANCE)
    for weight, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, other, rtol=TOLERANCE, atol=TOLERANCE)
