"""Keras on torch: `model.fit` on two workers learns what it would on one with both their batches."""

from collections.abc import Iterator

import pytest

pytest.importorskip("tensorflow")  # Keras runs on it in this process; in the workers it runs on torch

from tests.keras.cases import sgd
from tests.keras.fitting import fit
from tests.tensorflow.crew import Crew


@pytest.fixture
def torch_crew() -> Iterator[Crew]:
    crew = Crew(2, KERAS_BACKEND="torch")
    yield crew
    crew.close()


def test_fit(torch_crew: Crew) -> None:
    torch_crew.run(fit, sgd, "graph")
