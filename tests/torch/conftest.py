from collections.abc import Iterator

import pytest

from tests.torch.crew import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Four processes for all tests of this folder."""
    crew = Crew(4)
    yield crew
    crew.close()
