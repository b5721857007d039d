"""Ports of loopback for jobs that start now: nobody else on this machine can be given one meanwhile."""

import itertools
import socket

from legato.settings import PORT_OFFSET

NUM_PORTS = 32
"""After so many jobs the first one's port comes again; it has long been free by then."""


def free_port() -> int:
    """A port to listen at. The one where a launcher's job has its conductor, PORT_OFFSET further, is free as well."""
    return next(_ports)


def _reserve() -> int:
    """Bound, so that the kernel gives it to nobody; not listened at, so that whoever reuses addresses can listen."""
    while True:
        with socket.socket() as listener, socket.socket() as beside:
            for each in (listener, beside):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
            try:
                beside.bind(("127.0.0.1", port + PORT_OFFSET))
            except OSError:
                continue
            for each in (listener, beside):
                each.detach()  # it stays bound for as long as this process runs
            return port


_ports = itertools.cycle([_reserve() for _ in range(NUM_PORTS)])
