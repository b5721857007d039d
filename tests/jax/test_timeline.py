"""The timeline of training: gradients travel while the backward pass that makes the others still runs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import legato.jax as lg
from tests.crew import Crew
from tests.observe.picture import Picture, check_nesting, read

NUM_LAYERS = 6
NUM_STEPS = 5


def train(way: str) -> None:
    """Layers wide enough that each takes the backward pass some milliseconds."""
    params = {f"layer {i}": jnp.eye(512) for i in range(NUM_LAYERS)}
    x = jnp.ones((512, 512))

    def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for layer in params.values():
            x = jnp.tanh(x @ layer)
        return jnp.mean(x)

    options = lg.ExchangeOptions(policy="bytescheduler", partition_bytes="256KiB")
    if way == "schedule":
        optimizer = lg.schedule(optax.sgd(0.1), **options)
        state, step = optimizer.init(params), jax.jit(optimizer.step(loss))
        for _ in range(NUM_STEPS):
            params, state, _ = step(params, state, x)
        jax.block_until_ready(optimizer.finish(params, state))
    else:
        gradients = jax.jit(lg.value_and_grad(loss, **options))
        for _ in range(NUM_STEPS):
            jax.block_until_ready(gradients(params, x))


def check_overlap(picture: Picture) -> None:
    """In most steps the last layer's gradient is under way, or has arrived, before the first layer's exists."""
    check_nesting(picture)
    for rows in picture.values():
        begins = {
            (layer, details["step"]): begin_ns
            for layer in range(NUM_LAYERS)
            for row, boxes in rows.items()
            if row.endswith(f"['layer {layer}']")
            for name, begin_ns, _, details in boxes
            if name.startswith("step ")
        }
        sent = {
            details["step"]: begin_ns
            for row, boxes in rows.items()
            if row.startswith("part")
            for name, begin_ns, _, details in reversed(boxes)
            if f"['layer {NUM_LAYERS - 1}']" in name
        }
        early = [step for step, begin_ns in sent.items() if begin_ns < begins[0, step]]
        assert len(early) > NUM_STEPS // 2


@pytest.mark.parametrize("way", ["value_and_grad", "schedule"])
def test_gradients_travel_while_backward_runs(crew: Crew, way: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    crew.run(train, way, LEGATO_TIMELINE=str(path))
    check_overlap(read(path))
