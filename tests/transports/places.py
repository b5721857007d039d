"""Hosts for members that run as threads of one process."""

import threading
from collections.abc import Callable

import pytest

from legato.transports.rendezvous import hosts


def place_ranks(monkeypatch: pytest.MonkeyPatch, host_of: Callable[[int], int]) -> None:
    """Have every member believe that it is on this host; servers are numbered after the ranks."""

    def identity() -> str:
        return f"host {host_of(int(threading.current_thread().name.removeprefix('rank-')))}"

    monkeypatch.setattr(hosts, "identity", identity)
