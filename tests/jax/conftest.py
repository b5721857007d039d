import importlib.util
from collections.abc import Iterator

import pytest

from tests.crew import Crew
from tests.jax.crew import jax_crew

MISSING = [name for name in ("jax", "optax") if importlib.util.find_spec(name) is None]

if MISSING:
    collect_ignore_glob = ["test_*.py"]  # what they import is not there


def pytest_report_header() -> str | None:
    return f"legato.jax is not tested: {' and '.join(MISSING)} missing" if MISSING else None


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Two processes for all tests of this folder."""
    crew = jax_crew()
    yield crew
    crew.close()
