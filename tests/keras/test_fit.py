"""`model.fit` on two workers learns what it would on one with both their batches."""

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import keras
import numpy as np

import legato.keras as lg
from legato.errors import InputError
from tests.keras.cases import BATCH, MakeOptimizer, adamw, data, mine, network, sgd
from tests.keras.fitting import fit
from tests.tensorflow.crew import Crew


@pytest.mark.parametrize(("make", "how"), [(sgd, "graph"), (adamw, "graph"), (sgd, "eager")])
def test_fit(crew: Crew, make: MakeOptimizer, how: str) -> None:
    crew.run(fit, make, how)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_fit_of_a_scheduled_model(crew: Crew, make: MakeOptimizer) -> None:
    crew.run(fit, make, "schedule")


def _saved(folder: str) -> None:
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
    assert int(loaded.optimizer.iterations) == 1
    for both in (model, loaded):
        both.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    for weight, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_a_saved_model_loads_with_and_without_legato(crew: Crew, tmp_path: Path) -> None:
    crew.run(_saved, str(tmp_path))
