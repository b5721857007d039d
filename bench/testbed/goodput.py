"""Raw TCP goodput through a testbed's links: what any transport is measured against."""

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.testbed import crew
from bench.testbed.pacing import pace
from bench.testbed.testbed import Testbed

_PORT = 5201
_WARM_UP_S = 0.5
_CONNECT_S = 30.0
_CHUNK = bytes(256 << 10)

Pair = tuple[int, int]
"""(sender, receiver)."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Payload bytes per second that a host receives."""

    one_to_one: float
    """From one sender, the other links idle."""
    all_to_all: float
    """From all others, while it sends to all others: the pattern of an all-reduce; the mean of the hosts."""

    @property
    def bytes_per_s(self) -> float:
        """What a bound must use: the better of the two.

        One flow reaches what the headers leave of the line (1448 of 1514 bytes at an MTU of 1500). Many flows meet in
        queues, and what they lose there is the transport's to win back, not the bound's to forgive.
        """
        return max(self.one_to_one, self.all_to_all)


def measure(testbed: Testbed, *, duration_s: float = 1.0) -> Goodput:
    """Load the links with nothing but TCP, first one of them and then all."""
    hosts = range(testbed.num_hosts)
    addresses = [testbed.address(host) for host in hosts]
    return gather(crew.run(testbed, hosts, flow, addresses, duration_s=duration_s))


def gather(received: Sequence[Sequence[float]]) -> Goodput:
    """What `flow` returned on every rank, as one."""
    return Goodput(
        one_to_one=received[1][0],
        all_to_all=sum(by_pattern[1] for by_pattern in received) / len(received),
    )


def flow(
    station: crew.Station,
    addresses: Sequence[str],
    *,
    duration_s: float = 1.0,
    pace_bytes_per_s: float | None = None,
) -> list[float]:
    """Bytes per second that this rank received, first from one other and then from all; of a crew on all hosts.

    Each connection can be limited to a rate.
    """
    ranks = range(len(addresses))
    every_pair = [(sender, receiver) for sender in ranks for receiver in ranks if sender != receiver]
    with socket.create_server((addresses[station.rank], _PORT), backlog=len(addresses)) as listener:
        return [
            _exchange(station, listener, addresses, pairs, duration_s, pace_bytes_per_s)
            for pairs in ([(0, 1)], every_pair)
        ]


def _exchange(
    station: crew.Station,
    listener: socket.socket,
    addresses: Sequence[str],
    pairs: Sequence[Pair],
    duration_s: float,
    pace_bytes_per_s: float | None,
) -> float:
    with ExitStack() as connections, selectors.DefaultSelector() as selector:
        station.meet()  # everybody listens
        for sender, receiver in pairs:
            if sender == station.rank:
                outgoing = socket.create_connection((addresses[receiver], _PORT), _CONNECT_S)
                connections.enter_context(outgoing).setblocking(False)
                if pace_bytes_per_s is not None:
                    pace(outgoing, pace_bytes_per_s)
                selector.register(outgoing, selectors.EVENT_WRITE)
        for _, receiver in pairs:
            if receiver == station.rank:
                incoming, _ = listener.accept()
                connections.enter_context(incoming).setblocking(False)
                selector.register(incoming, selectors.EVENT_READ)
        begin_s = station.meet() + _WARM_UP_S
        received = _pump(selector, begin_s, begin_s + duration_s)
        station.meet()  # nobody closes a connection that another still counts on
    return received


def _pump(selector: selectors.BaseSelector, begin_s: float, end_s: float) -> float:
    """Send and receive as much as goes; bytes received per second between the two instants."""
    buffer = bytearray(1 << 20)
    num_bytes = 0
    mark: tuple[float, int] | None = None
    while (now_s := time.monotonic()) < end_s:
        if mark is None and now_s >= begin_s:
            mark = (now_s, num_bytes)
        for key, _ in selector.select(end_s - now_s if mark else max(begin_s - now_s, 0.0)):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if key.events & selectors.EVENT_WRITE:
                connection.send(_CHUNK)
            else:
                num_bytes += connection.recv_into(buffer)
    assert mark is not None
    return (num_bytes - mark[1]) / (now_s - mark[0])
