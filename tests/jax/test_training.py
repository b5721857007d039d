"""Two workers train as one process does on both their batches."""

import functools
from typing import Any

import numpy as np
import pytest

import legato.jax as lg
from tests.crew import Crew
from tests.jax.models import MODELS, OPTIMIZERS, WAYS

TOLERANCE = 2e-5
"""In float32, of losses and weights after 50 steps: the sum over a batch is rounded in another order."""


def train(model: str, optimizer: str, way: str, steps: int) -> Any:
    params, loss = MODELS[model]()
    return WAYS[way](OPTIMIZERS[optimizer](), lg.broadcast(params), loss, steps)


@functools.cache
def train_alone(crew: Crew, model: str, optimizer: str, way: str, steps: int) -> Any:
    """Losses and weights of one process on the joined batches."""
    [trained] = crew.run(train, model, optimizer, way, steps, size=1)
    return trained


def check(crew: Crew, model: str, optimizer: str, way: str, steps: int) -> None:
    alone, weights = train_alone(crew, model, optimizer, "value_and_grad", steps)
    (first, first_weights), (second, second_weights) = crew.run(train, model, optimizer, way, steps)
    assert alone[-1] < 0.9 * alone[0]
    np.testing.assert_allclose(np.add(first, second) / 2, alone, atol=TOLERANCE)
    for mine, yours, expected in zip(first_weights, second_weights, weights, strict=True):
        np.testing.assert_array_equal(mine, yours)
        np.testing.assert_allclose(mine, expected, atol=TOLERANCE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fifty_steps(crew: Crew, optimizer: str, way: str) -> None:
    check(crew, "mlp", optimizer, way, 50)


@pytest.mark.parametrize("way", ["optimizer", "schedule", "by hand"])
def test_a_job_of_one_trains_alike_in_all_ways(crew: Crew, way: str) -> None:
    expected, weights = train_alone(crew, "mlp", "adam", "value_and_grad", 50)
    losses, found = train_alone(crew, "mlp", "adam", way, 50)
    np.testing.assert_allclose(losses, expected, atol=TOLERANCE)
    for mine, other in zip(found, weights, strict=True):
        np.testing.assert_allclose(mine, other, atol=TOLERANCE)


@pytest.mark.parametrize("way", ["value_and_grad", "schedule"])
@pytest.mark.parametrize("model", ["scan", "flax", "equinox"])
def test_models(crew: Crew, model: str, way: str) -> None:
    pytest.importorskip(model if model != "scan" else "jax")
    check(crew, model, "adam", way, 20)


def late_and_at_once(way: str) -> Any:
    params, loss = MODELS["mlp"]()
    return WAYS[way](OPTIMIZERS["adam"](), params, loss, 20)


def test_a_schedule_changes_nothing(crew: Crew) -> None:
    """Updates come later than within the step, and are the same."""
    [(losses, _), _] = crew.run(late_and_at_once, "optimizer")
    [(scheduled, _), _] = crew.run(late_and_at_once, "schedule")
    np.testing.assert_allclose(scheduled, losses, atol=1e-6)
