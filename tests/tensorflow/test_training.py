"""Two workers learn what one process with both their batches would: eager, in a graph, and across the step boundary."""

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
import numpy as np  # noqa: E402

import legato.tensorflow as lg  # noqa: E402
from legato.errors import InputError  # noqa: E402
from tests.crew import Crew  # noqa: E402
from tests.tensorflow.cases import MakeOptimizer, adamw, batches, check, decaying, loss_of, network, sgd  # noqa: E402


def _other_weights(model: keras.Model) -> None:
    """Rank 1 begins elsewhere: rank 0's weights must reach it."""
    if lg.rank() == 1:
        model.set_weights([weight + 1 for weight in model.get_weights()])


def _tape(make: MakeOptimizer, in_graph: bool) -> None:
    lg.init()
    model, optimizer = network(), make()
    _other_weights(model)
    lg.broadcast_variables(model.variables, root_rank=0)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        tape = lg.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = tf.function(step) if in_graph else step
    losses = [float(run(x, y)) for x, y in batches()]
    check(losses, model.get_weights(), make)


@pytest.mark.parametrize("in_graph", [False, True])
def test_tape(crew: Crew, in_graph: bool) -> None:
    crew.run(_tape, sgd, in_graph)


def _optimizer(make: MakeOptimizer, in_graph: bool) -> None:
    lg.init()
    model, optimizer = network(), lg.DistributedOptimizer(make())
    with pytest.raises(InputError, match="already"):
        lg.DistributedOptimizer(optimizer)
    assert type(optimizer).__name__ == type(make()).__name__
    _other_weights(model)
    lg.broadcast_variables(model.variables, root_rank=0)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = tf.function(step) if in_graph else step
    losses = [float(run(x, y)) for x, y in batches()]
    check(losses, model.get_weights(), make)


@pytest.mark.parametrize("in_graph", [False, True])
def test_optimizer(crew: Crew, in_graph: bool) -> None:
    crew.run(_optimizer, adamw, in_graph)


def _schedule(make: MakeOptimizer, in_graph: bool) -> None:
    lg.init()
    model, optimizer = network(), make()
    _other_weights(model)
    assert lg.schedule(model, optimizer) == (model, optimizer)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = tf.function(step) if in_graph else step
    all_batches = batches()
    losses = [float(run(x, y)) for x, y in all_batches]
    variable = model.trainable_variables[0]
    before = variable.numpy()
    lg.flush(model)
    assert not np.array_equal(before, variable.numpy()), "the last step was still due"
    after = variable.numpy()
    lg.flush(model)
    np.testing.assert_array_equal(after, variable.numpy())
    assert int(optimizer.iterations.numpy()) == len(all_batches)
    check(losses, model.get_weights(), make)
    lg.unschedule(model)
    assert type(optimizer) is type(make())
    run_alone = model(all_batches[0][0])
    assert run_alone.shape == (8, 2)


@pytest.mark.parametrize(("make", "in_graph"), [(sgd, True), (adamw, True), (decaying, True), (sgd, False)])
def test_schedule(crew: Crew, make: MakeOptimizer, in_graph: bool) -> None:
    crew.run(_schedule, make, in_graph)


def _learning_rate_at_the_step() -> None:
    lg.init()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    optimizer = keras.optimizers.SGD(1.0)
    lg.schedule(model, optimizer)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    step(tf.constant([[lg.rank() + 1.0]]))
    optimizer.learning_rate = 100.0
    assert model.get_weights()[0].item() == 1.0 - 1.5
    assert model(tf.constant([[2.0]])).numpy().item() == -1.0


def test_an_update_uses_the_learning_rate_of_its_own_step(crew: Crew) -> None:
    crew.run(_learning_rate_at_the_step)


def _last_step() -> Any:
    lg.init()
    model, optimizer = network(), sgd()
    lg.schedule(model, optimizer)
    x, y = batches()[0]
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    variable = model.trainable_variables[0]
    before = variable.numpy()
    lg.shutdown()
    return bool(np.any(before != variable.numpy()))


def test_leaving_applies_the_last_step(crew: Crew) -> None:
    assert crew.run(_last_step) == [True, True]


def _refusals() -> None:
    lg.init()
    for options in ({"global_clipnorm": 1.0}, {"use_ema": True}, {"gradient_accumulation_steps": 2}):
        with pytest.raises(InputError, match=next(iter(options))):
            lg.schedule(network(), keras.optimizers.SGD(**options))
    with pytest.raises(InputError, match="LossScaleOptimizer"):
        lg.schedule(network(), keras.optimizers.LossScaleOptimizer(sgd()))
    with pytest.raises(InputError, match="not scheduled"):
        lg.flush(network())
    with pytest.raises(InputError, match=r"keras\.optimizers"):
        lg.DistributedOptimizer(3)


def test_what_a_schedule_cannot_do_is_refused(crew: Crew) -> None:
    crew.run(_refusals)
