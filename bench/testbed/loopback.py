"""Loopback in place of a testbed, where namespaces are not permitted: every host is this machine, no link is shaped.

Whoever runs there can limit connections instead (pacing.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.testbed.namespace import Namespace
from bench.testbed.testbed import Testbed


class Loopback(Testbed):
    """Hosts that differ in their address only. `gbps` means nothing here: nobody slows the loopback down."""

    def address(self, host: int) -> str:
        self._check(host)
        return f"127.0.0.{host + 1}"

    def namespace(self, host: int) -> Namespace:
        self._check(host)
        return _Here()

    def _build(self) -> None:
        """There is nothing to build."""


class _Here(Namespace):
    """The namespace that the caller is in."""

    def __init__(self) -> None:
        """Nothing is opened, so there is nothing to close."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        yield
