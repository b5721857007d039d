"""Gradients travel while the backward pass goes on, and while the next forward pass does.

Each test holds one layer back until another's average has come: without the overlap it would wait in vain.
"""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402

import legato.tensorflow as lg  # noqa: E402
from tests.crew import Crew  # noqa: E402
from tests.observe.picture import phases, read  # noqa: E402

WAIT_S = 30.0


def _backward() -> None:
    """Layer 0's gradient waits, in the backward pass, until layer 1 has been updated."""
    lg.init()
    updated = threading.Event()
    variables = [tf.Variable(tf.ones([64, 64])), tf.Variable(tf.ones([64, 64]))]

    def held(gradient: Any) -> Any:
        assert updated.wait(WAIT_S), "layer 1 was not updated while backward ran"
        updated.clear()
        return gradient

    @tf.custom_gradient
    def hold(x: Any) -> Any:
        return tf.identity(x), lambda gradient: tf.ensure_shape(
            tf.numpy_function(held, [gradient], gradient.dtype, stateful=False), gradient.shape
        )

    def tell() -> None:
        updated.set()

    @tf.function
    def step(x: Any) -> None:
        with lg.DistributedGradientTape(policy="fifo") as tape:
            loss = tf.reduce_sum(tf.matmul(hold(tf.matmul(x, variables[0])), variables[1]))
        gradients = tape.gradient(loss, variables)
        with tf.control_dependencies([variables[1].assign_sub(gradients[1])]):
            tf.py_function(tell, [], [])
        variables[0].assign_sub(gradients[0])

    for _ in range(3):
        step(tf.ones([4, 64]))


def test_backward(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    crew.run(_backward, LEGATO_TIMELINE=str(path))
    for rows in read(path).values():
        first, last = (rows[next(row for row in rows if f"/{place}." in row)] for place in (0, 1))
        assert list(phases(first)) == list(phases(last)) == [0, 1, 2]
        begins = [begin for name, begin, _, _ in first if name.startswith("step ")]
        arrivals = [begin for name, begin, _, _ in last if name == "arrived"] or [
            end for name, _, end, _ in last if name.startswith("step ")
        ]
        assert all(arrival <= begin for arrival, begin in zip(arrivals, begins, strict=True))


class _Marked(keras.layers.Layer):  # type: ignore[misc]
    """A weight; in the forward pass it tells that it has run."""

    def __init__(self, mark: Any) -> None:
        super().__init__()
        self._mark = mark

    def build(self, _: Any) -> None:
        self.weight = self.add_weight(shape=(8, 8), initializer="ones", name="weight")

    def call(self, x: Any) -> Any:
        return self._mark(tf.matmul(x, self.weight))


STEPS = 4


def _across_the_step(folder: str) -> list[float]:
    """Rank 1 keeps the last layer's gradient of each step back until rank 0 is in the first layer of the next step.

    They meet at a pipe, a new one for each step: whoever opens it returns when the other has opened it too.
    """
    lg.init()
    forwards = backwards = 0

    def forward(x: Any) -> Any:
        nonlocal forwards
        if forwards > 0:
            os.close(os.open(f"{folder}/{forwards}", os.O_WRONLY))
        forwards += 1
        return x

    def backward(gradient: Any) -> Any:
        nonlocal backwards
        backwards += 1
        if backwards < STEPS:
            os.close(os.open(f"{folder}/{backwards}", os.O_RDONLY))
        return gradient

    def keep_shape(function: Any, x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(function, [x], x.dtype), x.shape)

    @tf.custom_gradient
    def first(x: Any) -> Any:
        return keep_shape(forward, x) if lg.rank() == 0 else tf.identity(x), lambda gradient: gradient

    @tf.custom_gradient
    def hold_back(weight: Any) -> Any:
        return tf.identity(weight), lambda g: keep_shape(backward, g) if lg.rank() == 1 else g

    class Last(_Marked):
        def call(self, x: Any) -> Any:
            return tf.matmul(x, hold_back(tf.convert_to_tensor(self.weight)))

    model = keras.Sequential([keras.Input((8,)), _Marked(first), Last(None)])
    optimizer = keras.optimizers.SGD(0.001)
    lg.schedule(model, optimizer, policy="fifo")

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    losses = [float(step(tf.ones([4, 8]))) for _ in range(STEPS)]
    lg.flush(model)
    return losses


def test_across_the_step(crew: Crew, tmp_path: Path) -> None:
    for step in range(1, STEPS):
        os.mkfifo(tmp_path / str(step))
    mine, other = crew.run(_across_the_step, str(tmp_path))
    assert mine == other
    assert mine == sorted(mine, reverse=True)
