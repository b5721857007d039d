from collections.abc import Iterator

import pytest

from tests.tensorflow.crew import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Two processes with Keras on TensorFlow, for all tests of this folder."""
    crew = Crew(2, KERAS_BACKEND="tensorflow")
    yield crew
    crew.close()
