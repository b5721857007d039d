"""`model.fit` on two workers, against one with both their batches; for whichever backend Keras has."""

from typing import Any

import numpy as np

import legato.keras as lg
from legato.transports.buffer import Array
from tests.keras.cases import BATCH, EPOCHS, MakeOptimizer, data, mine, network

TOLERANCE = 2e-5
"""In float32, between one sum over a joined batch and two over halves of it, after 50 steps."""


def _alone(make: MakeOptimizer) -> tuple[list[float], list[Array]]:
    model = network()
    model.compile(make(), "mse")
    history = model.fit(*data(), batch_size=2 * BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def fit(make: MakeOptimizer, how: str) -> None:
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
