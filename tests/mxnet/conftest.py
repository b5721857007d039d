from collections.abc import Iterator

import pytest

from tests.mxnet.crew import Crew, shared_crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    yield shared_crew()
    assert shared_crew().close() == [0, 0]
