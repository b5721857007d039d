"""`model.fit` on two workers learns what it would on one with both their batches."""

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from tests.crew import Crew
from tests.keras.cases import MakeOptimizer, adamw, sgd
from tests.keras.fitting import fit, fit_on_one_host, fit_with_a_server, save_and_load


@pytest.mark.parametrize(("make", "how"), [(adamw, "graph"), (sgd, "eager")])
def test_fit(crew: Crew, make: MakeOptimizer, how: str) -> None:
    crew.run(fit, make, how)


def test_workers_on_one_host_use_no_network(crew: Crew) -> None:
    fit_on_one_host(crew)


@pytest.mark.parametrize("role", ["worker", "joint"])
def test_a_dedicated_server_sums(crew: Crew, role: str) -> None:
    fit_with_a_server(crew, role)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_fit_of_a_scheduled_model(crew: Crew, make: MakeOptimizer) -> None:
    crew.run(fit, make, "schedule")


def test_a_saved_model_loads_with_and_without_legato(crew: Crew, tmp_path: Path) -> None:
    crew.run(save_and_load, str(tmp_path))
