import pytest
from hypothesis import settings

# How long an example takes is the machine's affair, and under a sanitizer several times that; every test has a timeout.
settings.register_profile("legato", deadline=None)
settings.load_profile("legato")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs an accelerator where there is none."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))
