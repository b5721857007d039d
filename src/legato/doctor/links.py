"""Links: bandwidth and latency between the ranks of a job, measured over TCP connections of their own.

One rank of each host takes part; all of them do if there is but one host, whose loopback is measured then. They stand
in a ring, and every one sends to the next:

    one at a time      0 ─► 1    2 ─► 3        no link has more than one flow, in one direction
                            1 ─► 2    3 ─► 0
    all at once        0 ─► 1 ─► 2 ─► 3 ─► 0   every link is busy in both directions, as in training

Then the engine averages a tensor, with all ranks: that is the rate which legato reaches.
"""

import hmac
import json
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, TypeVar

import numpy as np

from legato.errors import DeadlineError, JobError
from legato.records import build
from legato.sim import Cluster
from legato.transports.native.group import NativeGroup
from legato.transports.rendezvous.hosts import identity, number

T = TypeVar("T")

WARM_UP_S, MEASURED_S, SLICE_S = 0.3, 0.6, 0.1
"""A flow begins slowly; then the rate of each slice counts."""
NUM_PINGS = 200
WAIT_S = 30.0
"""For another rank."""
ENGINE_S = 0.2
"""About how long the engine is to be busy with a tensor."""
ENGINE_BYTES = (1 << 20, 64 << 20)
"""The smallest and the largest tensor for that."""
NUM_WARM_UPS, NUM_AVERAGES = 3, 7
"""The engine finds out in the first few how fast its links are."""
_TOKEN_BYTES = 16
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """From one rank to another, nothing else on their links."""

    sender: int
    receiver: int
    gbps: float
    """Goodput; the median of its slices."""
    low_gbps: float
    high_gbps: float
    latency_s: float
    """One way: half a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What there is between the ranks of a job."""

    num_workers: int
    num_hosts: int
    gbps: float
    """Goodput of the slowest flow by itself."""
    low_gbps: float
    """The least that was seen: of slices, and of flows at the same time."""
    high_gbps: float
    """The most that the slowest flow has reached."""
    latency_s: float
    """Of the slowest flow."""
    engine_gbps: float | None = None
    """Of a link, while legato's engine averages a large tensor; None where nothing was measured."""
    flows: tuple[Flow, ...] = ()
    """Empty where links are as the user says."""

    @property
    def is_measured(self) -> bool:
        return bool(self.flows)

    @property
    def num_places(self) -> int:
        """Between which gradients travel: hosts, or the ranks of the only one."""
        return self.num_hosts if self.num_hosts > 1 else self.num_workers


def given_links(num_workers: int, gbps: float, latency_s: float) -> Links:
    """Those that a user describes, a rank on each host."""
    return Links(
        num_workers=num_workers,
        num_hosts=num_workers,
        gbps=gbps,
        low_gbps=gbps,
        high_gbps=gbps,
        latency_s=latency_s,
    )


def gather(group: NativeGroup, name: str, value: object) -> list[Any]:
    """What every rank says, by rank; as JSON, and in lines since texts differ in length."""
    text = np.frombuffer(json.dumps(value).encode() + b"\n", np.uint8).copy()
    return [json.loads(line) for line in group.allgather(name, text).tobytes().decode().splitlines()]


def measure_links(group: NativeGroup) -> Links:
    """All ranks call it, and all get the same answer. It takes some seconds, whatever their number."""
    hosts = number(gather(group, "legato/doctor/hosts", identity()))
    members = [hosts.index(host) for host in range(max(hosts) + 1)]
    if len(members) == 1:
        members = list(range(group.size))
    ring = _Ring(group, members)
    flows, together = ring.measure()
    slowest = min(flows, key=lambda flow: flow.gbps)
    return Links(
        num_workers=group.size,
        num_hosts=max(hosts) + 1,
        gbps=slowest.gbps,
        low_gbps=min(slowest.low_gbps, *together),
        high_gbps=slowest.high_gbps,
        latency_s=max(flow.latency_s for flow in flows),
        engine_gbps=_engine_gbps(group, len(members), slowest.gbps),
        flows=tuple(flows),
    )


def _engine_gbps(group: NativeGroup, num_places: int, gbps: float) -> float:
    """By how fast the engine averages a tensor that takes it some time."""
    seconds_per_byte = Cluster(workers=num_places, gbps=1.0).seconds_per_byte
    least, most = ENGINE_BYTES
    num_items = int(min(max(ENGINE_S * gbps / seconds_per_byte, least), most)) // 4
    values = np.zeros(num_items, np.float32)
    seconds = []
    for _ in range(NUM_WARM_UPS + NUM_AVERAGES):
        group.barrier()
        begin_s = time.monotonic()
        group.push_pull("legato/doctor/engine", values)
        seconds.append(time.monotonic() - begin_s)
    slowest_s = max(gather(group, "legato/doctor/seconds", statistics.median(seconds[NUM_WARM_UPS:])))
    return float(values.nbytes * seconds_per_byte / slowest_s)


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a member has measured of its neighbours in the ring."""

    latency_s: float
    """To the next one."""
    alone: tuple[float, ...]
    """Gbit/s from the one before, slice by slice."""
    together: tuple[float, ...]
    """The same while all send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Of a door: told to ranks of the job alone."""

    host: str
    port: int
    token: str


class Door:
    """A port for connections between ranks, who show that they are by a word that others do not know."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self.whereabouts = Whereabouts(host=host, port=self._listener.getsockname()[1], token=self._token.hex())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def accept(self, wait_s: float = WAIT_S) -> socket.socket:
        """The next rank that comes; others are sent away."""
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            self._listener.settimeout(left_s)
            connection, _ = self._listener.accept()
            connection.settimeout(left_s)
            try:
                if hmac.compare_digest(_read(connection, _TOKEN_BYTES), self._token):
                    connection.settimeout(WAIT_S)
                    return connection
            except OSError:
                pass  # a stranger that says nothing, or has gone
            connection.close()
        raise TimeoutError(f"no rank came within {wait_s:g} s")


def dial(whereabouts: Whereabouts) -> socket.socket:
    """Go through a door."""
    connection = socket.create_connection((whereabouts.host, whereabouts.port), WAIT_S)
    connection.sendall(bytes.fromhex(whereabouts.token))
    return connection


def _read(connection: socket.socket, num_bytes: int) -> bytes:
    """So many, or fewer where there are no more."""
    said = b""
    while len(said) < num_bytes and (more := connection.recv(num_bytes - len(said))):
        said += more
    return said


class _Ring:
    """The members in their order, as one rank sees them. All ranks walk through the rounds, also those outside."""

    def __init__(self, group: NativeGroup, members: Sequence[int]) -> None:
        self._group = group
        self._members = members
        self._place = members.index(group.rank) if group.rank in members else None

    def measure(self) -> tuple[list[Flow], list[float]]:
        """Every flow alone, and the rate of each while all of them run."""
        size = len(self._members)
        latency_s = 0.0
        alone: tuple[float, ...] = ()
        with Door(self._group.session.member.addresses[self._group.rank][0]) as door:
            self._door = door
            told = gather(self._group, "legato/doctor/doors", asdict(door.whereabouts))
            self._doors = [build(Whereabouts, each) for each in told]
            # A member that sends does not receive: pairs that share nobody, and the last of an odd number by itself.
            for senders in (range(0, size - 1, 2), range(1, size - 1, 2), [size - 1]):
                pinged, _ = self._round(senders, _ping, _echo)
                _, received = self._round(senders, _send, _receive)
                latency_s, alone = pinged or latency_s, received or alone
            _, together = self._round(range(size), _send, _receive)
        heard = asdict(_Heard(latency_s, alone, together or ()))
        by_rank = [build(_Heard, each) for each in gather(self._group, "legato/doctor/heard", heard)]
        flows = [self._flow(place, by_rank) for place in range(size)]
        return flows, [statistics.median(by_rank[member].together) for member in self._members]

    def _flow(self, place: int, by_rank: Sequence[_Heard]) -> Flow:
        sender, receiver = self._members[place], self._members[(place + 1) % len(self._members)]
        rates = by_rank[receiver].alone
        return Flow(
            sender=sender,
            receiver=receiver,
            gbps=statistics.median(rates),
            low_gbps=min(rates),
            high_gbps=max(rates),
            latency_s=by_rank[sender].latency_s,
        )

    def _round(
        self,
        senders: Sequence[int],
        send: Callable[[socket.socket], T],
        receive: Callable[[socket.socket], tuple[float, ...]],
    ) -> tuple[T | None, tuple[float, ...] | None]:
        """Members at these places have a connection to the next one, with something to do at either end."""
        self._group.barrier()
        if self._place is None:
            return None, None
        size = len(self._members)
        sends, receives = self._place in senders, (self._place - 1) % size in senders
        sent: list[T] = []
        failed: list[OSError] = []

        def work() -> None:
            try:
                with dial(self._doors[self._neighbour(1)]) as connection:
                    sent.append(send(connection))
            except OSError as error:
                failed.append(error)

        sender = threading.Thread(target=work, name="legato-doctor")
        received = None
        try:
            if sends:
                sender.start()
            if receives:
                with self._door.accept() as connection:
                    received = receive(connection)
        except OSError as error:
            failed.append(error)
        if sends:
            sender.join()
        if failed:
            raise self._trouble(failed[0]) from failed[0]
        return (sent[0] if sent else None), received

    def _trouble(self, error: OSError) -> JobError:
        return DeadlineError(
            f"rank {self._group.rank} could not measure its links to ranks {self._neighbour(-1)} and "
            f"{self._neighbour(1)} ({error}); ranks must reach each other at any port"
        )

    def _neighbour(self, step: int) -> int:
        """The rank of the next member, or of the one before."""
        assert self._place is not None
        return self._members[(self._place + step) % len(self._members)]


def _ping(connection: socket.socket) -> float:
    """Half of the median round trip."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = []
    for _ in range(NUM_PINGS):
        begin_s = time.perf_counter()
        connection.sendall(b"?")
        if not connection.recv(1):
            raise ConnectionResetError("it was closed")
        seconds.append(time.perf_counter() - begin_s)
    return statistics.median(seconds) / 2


def _echo(connection: socket.socket) -> tuple[float, ...]:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while word := connection.recv(1):
        connection.sendall(word)
    return ()


def _send(connection: socket.socket) -> None:
    chunk = bytes(_CHUNK_BYTES)
    until_s = time.monotonic() + WARM_UP_S + MEASURED_S
    while time.monotonic() < until_s:
        connection.sendall(chunk)


def _receive(connection: socket.socket) -> tuple[float, ...]:
    """Gbit/s of each slice after the warm-up; of the whole flow where a busy host left no time for slices."""
    buffer = bytearray(4 * _CHUNK_BYTES)
    begin_s = mark_s = now_s = time.monotonic()
    total_bytes = num_bytes = 0
    rates = []
    while received := connection.recv_into(buffer):
        total_bytes += received
        num_bytes += received
        now_s = time.monotonic()
        if now_s - mark_s >= SLICE_S:
            if mark_s - begin_s >= WARM_UP_S:
                rates.append(num_bytes * 8e-9 / (now_s - mark_s))
            mark_s, num_bytes = now_s, 0
    if not total_bytes:
        raise ConnectionResetError("nothing arrived")
    return tuple(rates) or (total_bytes * 8e-9 / (now_s - begin_s),)
