"""Somebody else's traffic on the same links: a TCP connection between two hosts that never has enough."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from bench.testbed.pacing import pace
from bench.testbed.testbed import Testbed

_CHUNK = bytes(256 << 10)
_TIMEOUT_S = 30.0


@contextmanager
def flow(testbed: Testbed, source: int, target: int, *, gbps: float | None = None) -> Iterator[None]:
    """From one host to another while the context lasts, as fast as it goes or at a rate."""
    ours, theirs = Pipe()
    with ours, theirs:
        sink = testbed.spawn(target, _sink, testbed.address(target), theirs)
        sent = testbed.spawn(source, _source, testbed.address(target), _hear(ours), gbps)
        _hear(ours)  # bytes arrive
        try:
            yield
        finally:
            testbed.stop(sent)
            testbed.stop(sink)


def _hear(line: "Connection[None, int]") -> int:
    if not line.poll(_TIMEOUT_S):
        raise TimeoutError(f"the background flow has not started within {_TIMEOUT_S:g} s")
    return line.recv()


def _sink(address: str, line: "Connection[int, None]") -> None:
    buffer = bytearray(1 << 20)
    with socket.create_server((address, 0)) as listener:
        listener.settimeout(_TIMEOUT_S)
        line.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            line.send(connection.recv_into(buffer))
            while connection.recv_into(buffer):
                pass


def _source(address: str, port: int, gbps: float | None) -> None:
    with socket.create_connection((address, port), _TIMEOUT_S) as connection:
        connection.settimeout(None)
        if gbps is not None:
            pace(connection, gbps * 1e9 / 8)
        while True:
            connection.sendall(_CHUNK)
