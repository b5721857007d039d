"""What processes that train on a testbed find in their environment, whatever system they train by."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_ENVIRONMENT = {
    # Otherwise glibc returns every gradient to the kernel, and the next faults its pages in again.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "GLOO_SOCKET_IFNAME": "eth0",
    # Hosts have no name service, of which torch warns from C++ as soon as a worker imports it.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


@contextmanager
def surroundings() -> Iterator[None]:
    """Set for the processes that are started in here."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
