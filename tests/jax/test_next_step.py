"""In the next step a layer waits for its own average alone: its forward runs while others have not even been sent."""

import os
import select
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legato.jax as lg
from legato.jax.buffers import TreeExchange
from tests.crew import Crew

NUM_LAYERS = 6
PATIENCE_S = 30
OPTIONS = lg.ExchangeOptions(policy="p3")


def layers() -> dict[str, jax.Array]:
    return {f"layer {i}": jnp.eye(512) for i in range(NUM_LAYERS)}


def rehearse(path: str, optimizer: str) -> None:
    if lg.rank() == 0:
        train(path, optax.sgd(0.1, momentum=0.9) if optimizer == "sgd" else optax.adam(1e-3))
    else:
        hold_back(path)


def train(path: str, optimizer: Any) -> None:
    """Two steps. In the second, the first layer's forward tells the other rank that it has run."""
    num_forwards = 0

    def tell(_: Any) -> None:
        nonlocal num_forwards
        num_forwards += 1
        if num_forwards == 2:
            pipe = os.open(path, os.O_WRONLY)
            os.write(pipe, b".")
            os.close(pipe)

    def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for name, layer in params.items():
            x = jnp.tanh(x @ layer)
            if name == "layer 0":
                jax.debug.callback(tell, x[0, 0])
        return jnp.mean(x)

    scheduled = lg.schedule(optimizer, **OPTIONS)
    params = layers()
    state, step = scheduled.init(params), jax.jit(scheduled.step(loss), donate_argnums=0)
    with lg.typed_errors():
        for _ in range(2):
            params, state, value = step(params, state, jnp.ones((256, 512)))
            float(value)
        jax.block_until_ready(scheduled.finish(params, state))
    assert num_forwards == 2


def hold_back(path: str) -> None:
    """The other rank: it sends the first layer's gradient, and the others only when that layer's forward has run."""
    params = layers()
    exchange = TreeExchange(lg.init(), params, OPTIONS, list(range(NUM_LAYERS)))
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    for step in range(2):
        started = []
        for index, leaf in enumerate(params.values()):
            if (step, index) == (0, 1):
                assert select.select([pipe], [], [], PATIENCE_S)[0], "the first layer waits for others"
            start = jax.ffi.ffi_call("legato_start", jax.ShapeDtypeStruct((), np.uint32))
            number = start(leaf, np.uint32(0), exchange=exchange.number, index=index)
            started.append(jax.block_until_ready(number))
        jax.block_until_ready(exchange.finish(started, params))
    os.close(pipe)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_layer_waits_for_its_own_average_alone(crew: Crew, optimizer: str, tmp_path: Path) -> None:
    path = tmp_path / "first layer"
    os.mkfifo(path)
    crew.run(rehearse, str(path), optimizer)
