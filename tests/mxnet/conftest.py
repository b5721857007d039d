from collections.abc import Iterator

import pytest

from tests.crew import Crew
from tests.mxnet.crew import mxnet_crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Two processes for all tests of one run."""
    crew = mxnet_crew()
    yield crew
    assert crew.close() == [0, 0]
