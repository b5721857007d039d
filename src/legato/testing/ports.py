"""Ports of loopback for jobs that start now: nobody else on this machine can be given one meanwhile."""

import itertools
import socket

from legato.launchers import PORT_OFFSET

NUM_PORTS = 64
"""After so many jobs the first one's port comes again."""


def free_port() -> int:
    """A port to listen at. The one where a launcher's job has its conductor, PORT_OFFSET further, is free as well."""
    for port in itertools.islice(_ports, NUM_PORTS):
        if _is_free(port) and _is_free(port + PORT_OFFSET):
            return port
    raise RuntimeError(f"all {NUM_PORTS} reserved ports are listened at: which jobs have not ended?")


def _is_free(port: int) -> bool:
    """Whether the job that had it before has left; a process group's store may stay for as long as its process."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
    return True


def _reserve() -> int:
    """Bound, so that the kernel gives it to nobody; not listened at, so that whoever reuses addresses can listen."""
    while True:
        with socket.socket() as listener, socket.socket() as conductor:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
            try:
                conductor.bind(("127.0.0.1", port + PORT_OFFSET))
            except OSError:
                continue
            for reserved in (listener, conductor):
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserved.detach()  # it stays bound for as long as this process runs
            return port


_ports = itertools.cycle([_reserve() for _ in range(NUM_PORTS)])
