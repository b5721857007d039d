from collections.abc import Iterator

import pytest

from tests.tensorflow.crew import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Two processes for all tests of this folder."""
    crew = Crew(2)
    yield crew
    crew.close()
