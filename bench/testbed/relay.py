"""Latency: a process that holds frames back on their way from the hosts to the switch.

    eth0 ── port ─►[ held for the latency ]─► relay's end ── bridge
    eth0 ── port ◄─────────[ at once ]─────── relay's end ── bridge

The kernel's own emulator (netem) is not there everywhere, and this is enough for links of about 1 Gbit/s: frames come
as the stack makes them, up to 64 KB at once, with the header that says how to cut them (virtio_net_hdr).
"""

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection

_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_SO_RCVBUFFORCE = 33
_FRAME_BYTES = (64 << 10) + 256
_QUEUE_BYTES = 16 << 20


def relay(pairs: Sequence[tuple[str, str]], latency_s: float, line: "Connection[None, None]") -> None:
    """Forward between the links of each pair for as long as the process lives; from the first to the second late.

    `line` is told when the links are watched.
    """
    with ExitStack() as stack:
        links = [tuple(stack.enter_context(_open(name)) for name in pair) for pair in pairs]
        across = {a: b for pair in links for a, b in (pair, pair[::-1])}
        late = {port for port, _ in links}
        held: deque[tuple[float, socket.socket, bytes]] = deque()  # one latency for all: the first in is the first due
        line.send(None)
        while True:
            wait_s = max(held[0][0] - time.monotonic(), 0.0) if held else None
            ready, _, _ = select.select(list(across), [], [], wait_s)
            for link in ready:
                frame = link.recv(_FRAME_BYTES)
                if link in late:
                    held.append((time.monotonic() + latency_s, across[link], frame))
                else:
                    _send(across[link], frame)
            while held and held[0][0] <= time.monotonic():
                _, link, frame = held.popleft()
                _send(link, frame)


def _open(name: str) -> socket.socket:
    """What passes a link, whole frames, and not what this process sends itself."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    link.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
    link.bind((name, _ETH_P_ALL))
    return link


def _send(link: socket.socket, frame: bytes) -> None:
    try:
        link.send(frame, socket.MSG_DONTWAIT)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOBUFS):  # a full queue: dropped, as a switch does
            raise
