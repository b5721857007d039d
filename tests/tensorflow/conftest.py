from collections.abc import Iterator

import pytest

from tests.crew import Crew
from tests.tensorflow.crew import shared_crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    yield shared_crew()
    shared_crew().close()
