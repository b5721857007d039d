"""`model.fit` on two workers, against one with both their batches; for whichever backend Keras has."""

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import legato.keras as lg
from legato.errors import InputError
from legato.transports.buffer import Array
from tests.crew import Crew, dedicated_server
from tests.keras.cases import BATCH, EPOCHS, MakeOptimizer, data, mine, network, sgd

TOLERANCE = 2e-5
"""In float32, between one sum over a joined batch and two over halves of it, after 50 steps."""


@functools.cache
def _alone(make: MakeOptimizer) -> tuple[list[float], list[Array]]:
    model = network()
    model.compile(make(), "mse")
    history = model.fit(*data(), batch_size=2 * BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def fit(make: MakeOptimizer, how: str) -> dict[str, int]:
    """What the engine has counted in a training that equals one process's."""
    lg.init()
    model, optimizer = network(), make()
    if lg.rank() == 1:
        model.set_weights([weight + 1 for weight in model.get_weights()])
    callbacks: list[Any] = [lg.MetricAverageCallback()]
    if how == "schedule":
        import legato.tensorflow as scheduling

        scheduling.schedule(model, optimizer)
    else:
        lg.DistributedOptimizer(optimizer)
        callbacks.append(lg.BroadcastGlobalVariablesCallback(0))
    model.compile(optimizer, "mse", run_eagerly=how == "eager")
    x, y = (mine(samples, lg.rank()) for samples in data())
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    losses, weights = _alone(make)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=TOLERANCE, atol=TOLERANCE)
    for weight, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=TOLERANCE, atol=TOLERANCE)
    counters: dict[str, int] = lg.init().group.session.engine.statistics()
    return counters


def fit_on_one_host(crew: Crew) -> None:
    for counters in crew.run(fit, sgd, "graph"):
        assert counters["bytes_sent"] == 0
        assert counters["bytes_shared"] > 0


def fit_with_a_server(crew: Crew, role: str) -> None:
    """All that travels goes through it where workers do not serve; its share, where they do."""
    with dedicated_server(role) as (told, counters):
        crew.run(fit, sgd, "graph", **told)
    assert counters["bytes_received"] > 0
    assert counters["bytes_sent"] > 0


def save_and_load(folder: str) -> None:
    lg.init()
    model = network()
    model.compile(lg.DistributedOptimizer(sgd()), "mse")
    x, y = (mine(samples, lg.rank()) for samples in data())
    model.fit(x[:BATCH], y[:BATCH], batch_size=BATCH, verbose=0, callbacks=[lg.BroadcastGlobalVariablesCallback(0)])
    path = Path(folder) / f"{lg.rank()}.keras"
    model.save(path)
    plain = keras.saving.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.SGD
    loaded = lg.load_model(path)
    with pytest.raises(InputError, match="already"):
        lg.DistributedOptimizer(loaded.optimizer)
    assert int(keras.ops.convert_to_numpy(loaded.optimizer.iterations)) == 1
    for both in (model, loaded):
        both.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    for weight, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
