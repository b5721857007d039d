"""Ranks that disagree, and ranks that are gone: the engine's errors, in every mode, and no hang."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import legato.tensorflow as lg  # noqa: E402
from legato.errors import DeadlineError, JobError, MismatchError, PeerLostError  # noqa: E402
from tests.crew import Crew, LostError  # noqa: E402
from tests.tensorflow.cases import batches, loss_of, network, sgd  # noqa: E402


def _wrong_shapes(how: str) -> None:
    lg.init()
    shape = [3, 2 + lg.rank()]
    variable = tf.Variable(tf.ones(shape))
    if how == "push_pull":
        lg.push_pull(variable, name="v")
    elif how == "broadcast":
        lg.broadcast_variables([variable])
    else:

        @tf.function
        def step() -> Any:
            with lg.DistributedGradientTape() as tape:
                loss = tf.reduce_sum(variable)
            return tape.gradient(loss, variable)

        step()


@pytest.mark.parametrize("how", ["push_pull", "broadcast", "graph"])
def test_wrong_shapes(crew: Crew, how: str) -> None:
    for outcome in crew.outcomes(_wrong_shapes, how):
        assert isinstance(outcome, MismatchError)
        assert "3, 2" in str(outcome)
        assert "3, 3" in str(outcome)


def _missing() -> Any:
    lg.init()
    if lg.rank() == 0:
        lg.push_pull(tf.ones([4]), name="alone")
    return lg.push_pull(tf.ones([2]), name="together").numpy().tolist()


def test_a_tensor_that_one_rank_never_gives(crew: Crew) -> None:
    outcomes = crew.outcomes(_missing, LEGATO_TIMEOUT_S="2")
    assert all(isinstance(outcome, JobError) for outcome in outcomes), outcomes
    first, second = map(str, outcomes)
    # Who waits longest names its tensor; the other may hear that it has left.
    assert "alone" in first or "together" in second


def _late() -> None:
    lg.init()
    value = tf.ones([4])
    lg.push_pull(value, name="both")
    if lg.rank() == 0:
        lg.push_pull(value, name="both")
    else:
        lg.push_pull(value, name="other")


def test_a_step_that_one_rank_never_takes(crew: Crew) -> None:
    for outcome in crew.outcomes(_late, LEGATO_TIMEOUT_S="2"):
        assert isinstance(outcome, DeadlineError | PeerLostError), outcome


@tf.custom_gradient
def _spoilt(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Its gradient fails where it is computed."""
    return tf.identity(value), lambda gradient: tf.debugging.check_numerics(gradient / 0.0, "spoilt")


def _failing() -> None:
    """On rank 0 backward fails when the gradient of `last` is on its way, in one bucket with that of `first`."""
    lg.init()
    first, last = (tf.Variable(tf.ones([4])) for _ in range(2))
    spoilt = _spoilt if lg.rank() == 0 else tf.identity

    @tf.function
    def step() -> Any:
        with lg.DistributedGradientTape() as tape:
            loss = tf.reduce_sum(last * spoilt(first))
        return tape.gradient(loss, [first, last])

    with lg.typed_errors():
        step()


def test_a_graph_that_fails_while_a_gradient_is_on_its_way(crew: Crew) -> None:
    for outcome in crew.outcomes(_failing, LEGATO_TIMEOUT_S="2"):
        assert isinstance(outcome, JobError | tf.errors.InvalidArgumentError), outcome


def _killed(how: str) -> str:
    lg.init()
    model, optimizer = network(), sgd()
    if how == "schedule":
        lg.schedule(model, optimizer)
    else:
        lg.DistributedOptimizer(optimizer)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def train() -> None:
        for number, (x, y) in enumerate(batches()):
            if lg.rank() == 1 and number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            step(x, y)

    with pytest.raises(tf.errors.AbortedError):
        train()
    with pytest.raises(PeerLostError) as typed:
        lg.check()
    assert typed.value.rank == 1
    with pytest.raises(PeerLostError), lg.typed_errors():
        train()
    lg.shutdown(now=True)
    assert len(model.get_weights()) == 6, "a model can be saved after its job has failed"
    return "read"


@pytest.mark.parametrize("how", ["optimizer", "schedule"])
def test_a_killed_worker(crew: Crew, how: str) -> None:
    survivor, victim = crew.outcomes(_killed, how, LEGATO_TIMEOUT_S="20")
    assert isinstance(victim, LostError)
    assert survivor == "read"
