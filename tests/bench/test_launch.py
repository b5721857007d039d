"""A native job between hosts, as on a real network: right sums, and little on its way."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.namespace import is_permitted
from bench.testbed.testbed import Testbed

pytestmark = pytest.mark.skipif(not is_permitted(), reason="this user may not make network namespaces")

NUM_HOSTS = 3
NUM_ITEMS = 500_000
FIRST_BUFFER_BYTES = 64 * 1024
"""What a connection begins with, before the rate of its link is known (native/engine/net/uplink.cpp)."""


def send_buffers() -> list[int]:
    """Of this process's TCP connections to other hosts that have carried gradients: how much the kernel takes."""
    buffers = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as each:
            leaves_host = each.family == socket.AF_INET and each.getpeername()[0] != each.getsockname()[0]
            if leaves_host and num_acknowledged(each) > NUM_ITEMS:
                buffers.append(each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
    return buffers


def num_acknowledged(connection: socket.socket) -> int:
    """Bytes that the peer has acknowledged: tcpi_bytes_acked."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    return int.from_bytes(info[120:128], sys.byteorder)


def add_up(station: crew.Station, launch: Launch) -> tuple[list[float], list[int]]:
    """Which values some sums had, and the send buffers at their end."""
    gradient, total = np.full(NUM_ITEMS, station.rank + 1, np.float32), np.zeros(NUM_ITEMS, np.float32)
    values: set[float] = set()
    with launch.group(station.rank) as group:
        for step in range(3):
            group.push_pull("gradient", gradient, out=total, step=step)
            values.update(np.unique(total).tolist())
        return sorted(values), send_buffers()


def test_send_buffers_follow_a_slow_link() -> None:
    with Testbed(hosts=NUM_HOSTS, gbps=0.1) as testbed:
        launch = Launch(num_workers=NUM_HOSTS, conductor=testbed.address(0))
        results = crew.run(testbed, range(NUM_HOSTS), add_up, launch)
    for values, buffers in results:
        assert values == [NUM_HOSTS * (NUM_HOSTS + 1) / 2]
        assert len(buffers) == NUM_HOSTS - 1
        assert max(buffers) < FIRST_BUFFER_BYTES
