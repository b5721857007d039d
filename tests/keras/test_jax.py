"""Keras on JAX: `model.fit` on two workers learns what it would on one with both their batches."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("tensorflow")  # Keras runs on it in this process; in the workers it runs on JAX

import keras

import legato.keras as lg
from legato.errors import InputError, MismatchError
from tests.crew import Crew
from tests.keras import test_callbacks
from tests.keras.cases import BATCH, MakeOptimizer, adamw, data, mine, network, sgd
from tests.keras.fitting import fit, fit_on_one_host, fit_with_a_server, save_and_load
from tests.tensorflow.crew import keras_crew


@pytest.fixture(scope="module")
def jax_crew() -> Iterator[Crew]:
    crew = keras_crew("jax")
    yield crew
    crew.close()


@pytest.mark.parametrize(("make", "how"), [(adamw, "graph"), (sgd, "eager")])
def test_fit(jax_crew: Crew, make: MakeOptimizer, how: str) -> None:
    jax_crew.run(fit, make, how)


def test_workers_on_one_host_use_no_network(jax_crew: Crew) -> None:
    fit_on_one_host(jax_crew)


@pytest.mark.parametrize("role", ["worker", "joint"])
def test_a_dedicated_server_sums(jax_crew: Crew, role: str) -> None:
    fit_with_a_server(jax_crew, role)


def test_a_saved_model_loads_with_and_without_legato(jax_crew: Crew, tmp_path: Path) -> None:
    jax_crew.run(save_and_load, str(tmp_path))


@pytest.mark.parametrize("what", [test_callbacks.schedules, test_callbacks.warm_up, test_callbacks.metrics])
def test_callbacks_work_as_on_tensorflow(jax_crew: Crew, what: Callable[[], None]) -> None:
    jax_crew.run(what)


def _wrong_shapes() -> None:
    lg.init()
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2 + lg.rank())])
    model.compile(lg.DistributedOptimizer(sgd()), "mse")
    x, y = (mine(samples, lg.rank()) for samples in data())
    model.fit(x[:BATCH], y[:BATCH, :1], batch_size=BATCH, verbose=0)


def test_wrong_shapes(jax_crew: Crew) -> None:
    for outcome in jax_crew.outcomes(_wrong_shapes):
        assert isinstance(outcome, MismatchError), outcome
        assert "0.kernel" in str(outcome)


def _options() -> None:
    lg.init()
    with pytest.raises(InputError, match=r"tuner works in legato\.torch alone; accepted here: policy, .*"):
        lg.DistributedOptimizer(sgd(), tuner="twin")
    model = network()
    model.compile(lg.DistributedOptimizer(sgd(), policy="fifo", compression="fp16", min_compress_bytes=0), "mse")
    x, y = (mine(samples, lg.rank()) for samples in data())
    history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[lg.BroadcastGlobalVariablesCallback(0)])
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]


def test_options(jax_crew: Crew) -> None:
    jax_crew.run(_options)
