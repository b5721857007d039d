import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.programs import Programs

# Containers set it. Each of the hundreds of processes that tests start would compile legato anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes is the machine's affair, and under a sanitizer several times that; every test has a timeout.
settings.register_profile("legato", deadline=None)
settings.load_profile("legato")


def pytest_collection_finish() -> None:
    """What has been imported stays: collections of garbage, of which tests cause many, need not look at it."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs an accelerator where there is none."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Programs that have torch, and its launcher."""
    programs = Programs("legato.cli", "legato.torch", "torch._dynamo", "torch.distributed.run")
    yield programs
    programs.close()


@pytest.fixture
def forked_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of testbeds whose processes have torch."""
    from bench.testbed.testbed import Testbed
    from tests.forked_hosts import prepare, start

    prepare()
    monkeypatch.setattr(Testbed, "_start", start)
