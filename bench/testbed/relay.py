"""Latency and loss: a process that holds frames back on their way from the hosts to the switch, or drops them.

    eth0 ── port ─►[ held for the latency, or dropped ]─► relay's end ── bridge
    eth0 ── port ◄───────[ at once, or dropped ]───────── relay's end ── bridge

The kernel's own emulator (netem) is not there everywhere, and this is enough for links of about 1 Gbit/s: frames come
as the stack makes them, up to 64 KB at once, with the header that says how to cut them (virtio_net_hdr).
"""

import errno
import random
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection

_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_SO_RCVBUFFORCE = 33
_FRAME_BYTES = (64 << 10) + 256
_QUEUE_BYTES = 16 << 20
_SEED = 1


@dataclass(frozen=True, slots=True)
class Loss:
    """Which share of a host's frames is dropped from now on; 1.0 is all of them."""

    host: int
    sent: float
    received: float


def relay(pairs: Sequence[tuple[str, str]], latency_s: float, line: "Connection[None, Loss]") -> None:
    """Forward between the links of each pair for as long as the process lives; from the first to the second late.

    `line` is told when the links are watched, and when a loss that it has brought acts.
    """
    chance = random.Random(_SEED)
    lost: dict[socket.socket, float] = {}
    with ExitStack() as stack:
        links = [tuple(stack.enter_context(_open(name)) for name in pair) for pair in pairs]
        across = {a: b for pair in links for a, b in (pair, pair[::-1])}
        late = {port for port, _ in links}
        held: deque[tuple[float, socket.socket, bytes]] = deque()  # one latency for all: the first in is the first due
        watched: list[socket.socket | Connection[None, Loss]] = [*across, line]
        line.send(None)
        while True:
            wait_s = max(held[0][0] - time.monotonic(), 0.0) if held else None
            ready, _, _ = select.select(watched, [], [], wait_s)
            for link in ready:
                if not isinstance(link, socket.socket):
                    loss = line.recv()
                    lost.update(zip(links[loss.host], (loss.sent, loss.received), strict=True))
                    line.send(None)
                    continue
                frame = link.recv(_FRAME_BYTES)
                if chance.random() < lost.get(link, 0.0):
                    continue
                if link in late and latency_s:
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
