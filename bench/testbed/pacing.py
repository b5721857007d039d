"""Links without privileges: a process limits how fast its own TCP connections send.

The kernel paces a connection that has SO_MAX_PACING_RATE, by itself where the interface has no queue that does it (fq).
Unlike a shaped link, a rate belongs to a connection: what a host sends to several others adds up.
"""

import os
import socket
import stat
from pathlib import Path

_SO_MAX_PACING_RATE = 47  # not in Python's socket module


def pace(connection: socket.socket, bytes_per_s: float) -> None:
    """Send no faster than this from now on."""
    connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, round(bytes_per_s))


def pace_all(bytes_per_s: float) -> int:
    """Every TCP connection that this process has, whoever opened it; how many there are."""
    num_paced = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(entry.name))
        except OSError:
            continue  # the descriptor of the listing itself, or one that has just been closed
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(connection):
                pace(connection, bytes_per_s)
                num_paced += 1
    return num_paced


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True
