"""What goes wrong ends with legato's errors, on every rank, and never hangs."""

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import legato.jax as lg
from legato.errors import ClosedError, InputError, MismatchError, PeerLostError
from tests.crew import Crew, LostError
from tests.jax.models import data, mlp

PATIENCE_S = 30
"""Well below the job's timeout: nobody has waited for that."""


def other_shapes() -> None:
    gradients = {"same": jnp.ones(3), "other": jnp.ones(3 + lg.rank())}
    optimizer = lg.DistributedOptimizer(optax.sgd(0.1))
    jax.jit(lambda gradients: optimizer.update(gradients, optimizer.init(gradients))[0])(gradients)


def test_shapes_that_differ(crew: Crew) -> None:
    for outcome in crew.outcomes(other_shapes):
        assert isinstance(outcome, MismatchError)
        assert "['other']" in str(outcome)
        assert "(3,)" in str(outcome)
        assert "(4,)" in str(outcome)


def other_eager_shapes() -> None:
    lg.push_pull({"value": jnp.ones(3 + lg.rank())})


def test_eager_shapes_that_differ(crew: Crew) -> None:
    for outcome in crew.outcomes(other_eager_shapes):
        assert isinstance(outcome, MismatchError)


def train_until(last_step: int, way: str, *, leave: bool) -> Any:
    """Rank 1 trains so many steps, then it is gone; rank 0 says what it hears and when."""
    params, loss = mlp()
    if way == "schedule":
        optimizer = lg.schedule(optax.sgd(0.1))
        state = optimizer.init(params)
        step = jax.jit(optimizer.step(loss))
    else:
        state = None
        gradients = lg.value_and_grad(loss)
        step = jax.jit(lambda params, _, *batch: (gradients(params, *batch)[1], None, 0.0))
    for _ in range(last_step):
        params, state, _ = jax.block_until_ready(step(params, state, *data()))
    if lg.rank() == 1:
        if not leave:
            os._exit(1)
        return None
    since_s = time.monotonic()
    with lg.typed_errors():
        for _ in range(3):
            params, state, _ = jax.block_until_ready(step(params, state, *data()))
    return since_s


@pytest.mark.parametrize("way", ["value_and_grad", "schedule"])
def test_a_killed_worker(crew: Crew, way: str) -> None:
    since_s = time.monotonic()
    survivor, lost = crew.outcomes(_killed, way)
    assert isinstance(survivor, PeerLostError)
    assert survivor.rank == 1
    assert isinstance(lost, LostError)
    assert time.monotonic() - since_s < 2 * PATIENCE_S


def _killed(way: str) -> Any:
    return train_until(3, way, leave=False)


@pytest.mark.parametrize("way", ["value_and_grad", "schedule"])
def test_a_worker_that_leaves(crew: Crew, way: str) -> None:
    stays, leaves = crew.outcomes(_left, way)
    assert isinstance(stays, ClosedError)
    assert stays.rank == 1
    assert leaves is None


def _left(way: str) -> Any:
    return train_until(3, way, leave=True)


def after_shutdown() -> str:
    average = jax.jit(lambda value: lg.push_pull(value, name="value"))
    value = jnp.ones(3)
    assert average(value).tolist() == [1.0, 1.0, 1.0]
    lg.shutdown()
    with pytest.raises(ValueError, match="shut down since this program was traced; trace it again") as refused:
        jax.block_until_ready(average(value))
    return str(refused.value)


def test_a_program_of_a_job_that_has_ended(crew: Crew) -> None:
    assert all("trace it again" in line for line in crew.run(after_shutdown))


def misused() -> list[str]:
    params, _ = mlp()
    optimizer = lg.schedule(optax.sgd(0.1))
    state = optimizer.init(params)
    said = []
    for wrong in (
        lambda: optimizer.start(params, optimizer.start(params, state)),
        lambda: optimizer.finish(params, state.inner),
        lambda: jax.jit(lg.push_pull)(jnp.ones(3)),
        lambda: jax.jit(lg.broadcast)(jnp.ones(3)),
        lambda: lg.broadcast(jnp.ones(3), root=2),
        lambda: lg.DistributedOptimizer(optax.sgd(0.1)).update({}, ()),
        lambda: lg.push_pull(jnp.ones(3, jnp.complex64)),
    ):
        with pytest.raises((InputError, ValueError)) as refused:
            jax.block_until_ready(wrong())
        said.append(str(refused.value))
    return said


def test_misuse_is_refused_in_one_line(crew: Crew) -> None:
    for said in crew.run(misused):
        words = [
            "calls finish first, then start",
            "state is tuple; accepted",
            "needs a name",
            "called in a traced function",
            "root is 2; accepted is a rank from 0 to 1",
            "no leaves",
            "complex64",
        ]
        for line, expected in zip(said, words, strict=True):
            assert expected in line
            assert "\n" not in line.strip()
