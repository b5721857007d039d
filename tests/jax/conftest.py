import importlib.util
from collections.abc import Iterator

import pytest

from tests.jax.crew import Crew

if importlib.util.find_spec("jax") is None or importlib.util.find_spec("optax") is None:
    collect_ignore_glob = ["test_*.py"]  # what they import is not there


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Two processes for all tests of this folder."""
    crew = Crew(2)
    yield crew
    crew.close()


@pytest.fixture
def doomed() -> Iterator[Crew]:
    """Two processes of which one will not survive the test."""
    crew = Crew(2)
    yield crew
    crew.close()
