"""The native engine's network, simulated: every part has one owner, and every pair of hosts a connection of its own.

A parameter server in `network.py` spreads each part over all owners, and a simulated link finishes what it has begun.
The engine does neither. Both matter where few parts are in flight, so its links are simulated piece by piece:

    worker a ── started parts, most urgent first ──► buffer of a→b ──► a's uplink ──► b's downlink ──► owner b
                overtake at the next chunk           small; a part     each takes its connections      sums, and
                                                     is sent when it   in turn, a piece each           answers alike
                                                     is all in there

Answers go out by themselves, most urgent first, without credit; with a stage barrier an owner holds them until it has
summed all its parts of the step. They leave from the memory of the owner's own worker, which therefore has its sum
when the last answer is sent. Without that, bytescheduler on VGG16 would take 1.65 of T* instead of 1.18: owners would
run ahead of the workers that wait for them.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from legato.core import Part, Plan, Tensor
from legato.core.plan import ONE_STAGE
from legato.core.shards import Deployment, Shards
from legato.sim.cluster import Cluster
from legato.sim.link import Rate
from legato.sim.network import Arrival, Progress

CHUNK_BYTES = 64 << 10
"""A part that has begun a chunk finishes it before another one overtakes."""
PIECES = 2
"""A write carries half a buffer, and the kernel takes it as long as anything of the buffer is free."""
LEAST_BUFFER_BYTES, SLACK_S = 16 << 10, 1.5e-3
"""A buffer holds what its path holds, and its share of what the host's link carries in this time (decision 007)."""

Urgency = tuple[int, bool, int, int]
"""(rank, whether it is a contribution, step, sequence): native/engine/net/outgoing.hpp."""


def scheduled(plan: Plan) -> Plan:
    """What a worker follows of a plan: it starts contributions, and the second stage is the owners' answer.

    Parts end where tensors end, because the engine copies nothing together.
    """
    return replace(plan, stages=ONE_STAGE, ranks=plan.ranks[:1], stage_barrier=False, flat=False)


@dataclass(eq=False, slots=True)
class _Cargo:
    """A contribution or an answer on its way over one connection."""

    part: Part
    is_contribution: bool
    to_write: int
    to_arrive: int


Pieces = deque[tuple[_Cargo, int]]
"""Of which cargo, and how many bytes."""


@dataclass(eq=False, slots=True)
class _Connection:
    """From one host to another."""

    source: int
    target: int
    queue: list[tuple[Urgency, _Cargo]] = field(default_factory=list)
    begun: tuple[Urgency, _Cargo] = field(init=False)
    """Whose chunk is being written, where something is left of it."""
    chunk_left: int = 0
    buffered_bytes: int = 0
    """Written and not yet arrived."""
    to_send: Pieces = field(default_factory=deque)
    on_the_way: Pieces = field(default_factory=deque)


class _Line:
    """One direction of one host's link: its connections take turns."""

    def __init__(self, bytes_per_s: float, rate: Rate) -> None:
        self._seconds_per_byte = 1 / bytes_per_s
        self._rate = rate
        self.turns: deque[_Connection] = deque()
        """Connections that have something for it."""
        self.serving: _Connection | None = None
        self.num_bytes = 0

    def passes_at(self, now: float, num_bytes: int) -> float:
        self.num_bytes += num_bytes
        return self._rate.finish(now, num_bytes * self._seconds_per_byte)


class Engine:
    """All hosts one by one: no two are alike, because each owns other parts."""

    def __init__(self, cluster: Cluster, rate: Rate, tensors: Sequence[Tensor], plan: Plan) -> None:
        self._plan = plan
        self._num_workers = cluster.workers
        self._latency_s = cluster.latency_s
        self._deployment = Deployment(
            num_workers=cluster.workers, num_servers=cluster.servers, workers_serve=cluster.shares[0] > 0
        )
        num_hosts = self._deployment.num_members
        rates = [cluster.bytes_per_second(group) for group in cluster.simulated]
        rates += [cluster.bytes_per_second()] * cluster.servers
        held_s = 2 * cluster.latency_s + SLACK_S / max(num_hosts - 1, 1)
        self._buffer_bytes = [int(max(LEAST_BUFFER_BYTES, each * held_s)) for each in rates]
        self._up = [_Line(each, rate) for each in rates]
        self._down = [_Line(each, rate) for each in rates]
        self._connections = {
            (source, target): _Connection(source, target)
            for source in range(num_hosts)
            for target in range(num_hosts)
            if source != target
        }
        self._owner_of = _owners(plan, tensors, self._deployment)
        self._num_owned = [0] * num_hosts
        for owner in self._owner_of.values():
            self._num_owned[owner] += 1
        self._contributed: defaultdict[Part, int] = defaultdict(int)
        self._num_summed: defaultdict[int, int] = defaultdict(int)
        self._held: defaultdict[tuple[int, int], list[Part]] = defaultdict(list)
        self._unsent: dict[Part, int] = {}
        """Answers that an owner still has to send. They leave from its own worker's memory, which has the sum then."""
        self._sequence = 0

    @property
    def num_bytes(self) -> float:
        return self._up[0].num_bytes

    def is_summed(self, step: int) -> bool:
        """Whether every part of a step is at its owner, who then tells its measure (decision 020)."""
        return self._num_summed[step] == len(self._owner_of)

    def start(self, now: float, group: int, part: Part) -> Iterable[Arrival]:
        owner = self._owner_of[part.bucket, part.offset]
        if owner == group:
            return [(now, group, part, Progress.SENT), *self._contribute(now, part)]
        rank = self._plan.ranks[0][part.bucket]
        return self._send(now, self._connections[group, owner], (rank, True, part.step), part)

    def progressed(self, now: float, group: int, part: Part, progress: Progress) -> Iterable[Arrival]:
        match progress:
            case Progress.LEFT:
                return self._left(now, self._up[group])
            case Progress.ARRIVED:
                return self._arrived(now, self._down[group])
            case Progress.HALF_WAY:
                return self._contribute(now, part)
            case _:
                return ()

    def _contribute(self, now: float, part: Part) -> list[Arrival]:
        """The owner has one contribution more."""
        self._contributed[part] += 1
        if self._contributed[part] < self._num_workers:
            return []
        del self._contributed[part]
        self._num_summed[part.step] += 1
        owner = self._owner_of[part.bucket, part.offset]
        if not self._plan.stage_barrier:
            return self._answer(now, owner, part)
        held = self._held[owner, part.step]
        held.append(part)
        if len(held) < self._num_owned[owner]:
            return []
        del self._held[owner, part.step]
        return [arrival for each in held for arrival in self._answer(now, owner, each)]

    def _answer(self, now: float, owner: int, part: Part) -> list[Arrival]:
        arrivals: list[Arrival] = []
        rank = self._plan.ranks[-1][part.bucket]
        workers = [worker for worker in range(self._num_workers) if worker != owner]
        self._unsent[part] = len(workers)
        for worker in workers:
            arrivals += self._send(now, self._connections[owner, worker], (rank, False, part.step), part)
        return arrivals

    def _send(self, now: float, connection: _Connection, urgency: tuple[int, bool, int], part: Part) -> list[Arrival]:
        self._sequence += 1
        cargo = _Cargo(part, urgency[1], part.length, part.length)
        heappush(connection.queue, ((*urgency, self._sequence), cargo))
        return self._write(now, connection)

    def _write(self, now: float, connection: _Connection) -> list[Arrival]:
        """Fill the connection's buffer, from the most urgent cargo chunk by chunk."""
        arrivals: list[Arrival] = []
        buffer_bytes = self._buffer_bytes[connection.source]
        while connection.buffered_bytes < buffer_bytes:
            if not connection.chunk_left:
                if not connection.queue:
                    break
                connection.chunk_left = min(CHUNK_BYTES, connection.queue[0][1].to_write)
                connection.begun = heappop(connection.queue)
            urgency, cargo = connection.begun
            piece = min(connection.chunk_left, buffer_bytes // PIECES)
            connection.chunk_left -= piece
            cargo.to_write -= piece
            if not cargo.to_write:
                arrivals += self._sent(now, connection.source, cargo)
            elif not connection.chunk_left:
                heappush(connection.queue, (urgency, cargo))
            connection.buffered_bytes += piece
            _offer(self._up[connection.source], connection, connection.to_send, (cargo, piece))
        return arrivals + _serve(now, connection.source, self._up, Progress.LEFT)

    def _sent(self, now: float, host: int, cargo: _Cargo) -> list[Arrival]:
        if cargo.is_contribution:
            return [(now, host, cargo.part, Progress.SENT)]
        self._unsent[cargo.part] -= 1
        if self._unsent[cargo.part]:
            return []
        del self._unsent[cargo.part]
        return [(now, host, cargo.part, Progress.FINISHED)] if host < self._num_workers else []

    def _left(self, now: float, line: _Line) -> list[Arrival]:
        connection = line.serving
        assert connection is not None
        piece = connection.to_send.popleft()
        if connection.to_send:
            line.turns.append(connection)
        line.serving = None
        down = self._down[connection.target]
        _offer(down, connection, connection.on_the_way, piece)
        return [
            *_serve(now, connection.source, self._up, Progress.LEFT),
            *_serve(now, connection.target, self._down, Progress.ARRIVED),
        ]

    def _arrived(self, now: float, line: _Line) -> list[Arrival]:
        connection = line.serving
        assert connection is not None
        cargo, num_bytes = connection.on_the_way.popleft()
        if connection.on_the_way:
            line.turns.append(connection)
        line.serving = None
        connection.buffered_bytes -= num_bytes
        cargo.to_arrive -= num_bytes
        arrivals = [
            *_serve(now, connection.target, self._down, Progress.ARRIVED),
            *self._write(now, connection),
        ]
        if not cargo.to_arrive:
            progress = Progress.HALF_WAY if cargo.is_contribution else Progress.FINISHED
            arrivals.append((now + self._latency_s, connection.target, cargo.part, progress))
        return arrivals


def _offer(line: _Line, connection: _Connection, pieces: Pieces, piece: tuple[_Cargo, int]) -> None:
    if not pieces and line.serving is not connection:
        line.turns.append(connection)
    pieces.append(piece)


def _serve(now: float, host: int, lines: Sequence[_Line], progress: Progress) -> list[Arrival]:
    """Let the next connection have the host's line, if that is free."""
    line = lines[host]
    if line.serving is not None or not line.turns:
        return []
    connection = line.serving = line.turns.popleft()
    pieces = connection.to_send if progress is Progress.LEFT else connection.on_the_way
    cargo, num_bytes = pieces[0]
    return [(line.passes_at(now, num_bytes), host, cargo.part, progress)]


def _owners(plan: Plan, tensors: Sequence[Tensor], deployment: Deployment) -> dict[tuple[int, int], int]:
    """Who sums the part that begins at an offset of a bucket."""
    shards = Shards(deployment)
    bucket_of = plan.bucket_of
    starts: dict[int, int] = {}
    for bucket in plan.buckets:
        start = 0
        for tensor in bucket:
            starts[tensor] = start
            start += tensors[tensor].num_bytes
    return {
        (bucket_of[index], starts[index] + shard.offset): shard.server
        for index, tensor in enumerate(tensors)
        for shard in shards.add(tensor.num_bytes, tensor.item_bytes, plan.partition_bytes[bucket_of[index]])
    }
