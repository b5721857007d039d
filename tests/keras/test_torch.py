"""Keras on torch: `model.fit` on two workers learns what it would on one with both their batches."""

from collections.abc import Iterator

import pytest

pytest.importorskip("tensorflow")  # Keras runs on it in this process; in the workers it runs on torch

from tests.crew import Crew
from tests.keras.fitting import fit_on_one_host, fit_with_a_server
from tests.tensorflow.crew import keras_crew


@pytest.fixture(scope="module")
def torch_crew() -> Iterator[Crew]:
    crew = keras_crew("torch")
    yield crew
    crew.close()


def test_workers_on_one_host_use_no_network(torch_crew: Crew) -> None:
    fit_on_one_host(torch_crew)


@pytest.mark.parametrize("role", ["worker", "joint"])
def test_a_dedicated_server_sums(torch_crew: Crew, role: str) -> None:
    fit_with_a_server(torch_crew, role)
