"""`model.fit` on two workers learns what it would on one with both their batches."""

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from tests.keras.cases import MakeOptimizer, adamw, sgd
from tests.keras.fitting import fit, save_and_load
from tests.tensorflow.crew import Crew


@pytest.mark.parametrize(("make", "how"), [(sgd, "graph"), (adamw, "graph"), (sgd, "eager")])
def test_fit(crew: Crew, make: MakeOptimizer, how: str) -> None:
    crew.run(fit, make, how)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_fit_of_a_scheduled_model(crew: Crew, make: MakeOptimizer) -> None:
    crew.run(fit, make, "schedule")


def test_a_saved_model_loads_with_and_without_legato(crew: Crew, tmp_path: Path) -> None:
    crew.run(save_and_load, str(tmp_path))
