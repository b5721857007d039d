"""TCP sockets that members send gradients over, from before they are connected.

Note: never paced. What is on its way is bounded by the send buffer (native/engine/net/uplink.hpp), so reno has nothing
left to do, and must not do more. It is chosen before the connection exists: bbr, a common default, turns the kernel's
pacing on as soon as a connection is established, and no other congestion control turns it off again. A reno that is
paced sends no faster than 1.2 windows in a round trip once it has seen a segment retransmitted, so each of these
connections stays behind its neighbours for the rest of its life, and all ranks wait for it (docs/decisions/007).
"""

import contextlib
import socket

_CONGESTION_CONTROL = b"reno"


def unconnected(family: int) -> socket.socket:
    """To connect, or to listen with: accepted connections are like their listener."""
    made = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):  # a kernel without it; slower, not wrong
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION_CONTROL)
    return made


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """To the first address of the host that answers; OSError when none does."""
    error = OSError(f"host {host!r} has no address")
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = unconnected(family)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address)
        except OSError as refused:
            connection.close()
            error = refused
        else:
            return connection
    raise error
