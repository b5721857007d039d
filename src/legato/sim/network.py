"""Simulated transports: what happens to a part between its start and its end.

A network is told that a group of hosts has started a part, and says at which times which groups have finished it. All
hosts of a group are alike and do the same at the same time, so one host stands for its group; sums are balanced over
their owners, so every owner has the same share of every part.

    PS     push:  every worker's uplink and every owner's downlink at once      | sum when all groups have pushed
                  one after the other, with answers in between; sent when both links are through
           pull:  every owner's uplink and every worker's downlink at once      | parts overlap, in full duplex
    ring   waits for all groups, then 2(n-1) rounds of one hop and 1/n of the bytes each
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from heapq import heapreplace
from typing import Protocol

from legato.core import Part, Stage
from legato.errors import InputError
from legato.sim.cluster import Architecture, Background, Cluster
from legato.sim.link import Link, Rate


class Progress(Enum):
    """What has become of a part that a group has started."""

    SENT = auto()
    """It has left, and its credit comes back. A parameter server's workers know; those of a ring do not."""
    HALF_WAY = auto()
    """It has arrived where it is summed."""
    FINISHED = auto()
    LEFT = auto()
    """A piece of some part has passed the uplink of this host; only the network that announced it knows more."""
    ARRIVED = auto()
    """The same for the downlink."""


Arrival = tuple[float, int, Part, Progress]
"""(when, group, part, what)."""


class Network(Protocol):
    def start(self, now: float, group: int, part: Part) -> Iterable[Arrival]:
        """A group starts a part."""

    def progressed(self, now: float, group: int, part: Part, progress: Progress) -> Iterable[Arrival]:
        """What was announced has come: a part of a group is sent, or half way."""

    @property
    def num_bytes(self) -> float:
        """Bytes that have left one host of the first group."""


def make_network(cluster: Cluster) -> tuple[Network, Rate]:
    """One in which a host stands for its group."""
    rate = make_rate(cluster)
    if cluster.architecture is Architecture.NATIVE:
        raise InputError("arch native has no two hosts alike; only whole runs can be simulated")
    network: Network = (
        ParameterServer(cluster, rate) if cluster.architecture is Architecture.PS else Ring(cluster, rate)
    )
    return network, rate


def make_rate(cluster: Cluster) -> Rate:
    """How the bandwidth of all links changes."""
    return Rate(_factors(cluster.rates, cluster.background))


def _factors(rates: tuple[tuple[float, float], ...], background: tuple[Background, ...]) -> list[tuple[float, float]]:
    """Rates and background jobs as one list of changes."""
    edges = sorted({start for start, _ in rates} | {t for job in background for t in (job.start_s, job.stop_s)} | {0.0})

    def factor(at: float) -> float:
        base = next((value for start, value in reversed(rates) if start <= at), 1.0)
        for job in background:
            if job.start_s <= at < job.stop_s:
                base *= 1 - job.share
        return base

    return [(edge, factor(edge)) for edge in edges]


class _Meeting:
    """Counts the groups that have reached the same point with the same part."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._here: dict[Part, int] = {}

    def last(self, part: Part) -> bool:
        """Whether the group that comes now is the last one."""
        here = self._here.get(part, 0) + 1
        if here < self._groups:
            self._here[part] = here
            return False
        self._here.pop(part, None)
        return True


class ParameterServer:
    """Push, sum, pull; joint, separate or mixed."""

    def __init__(self, cluster: Cluster, rate: Rate) -> None:
        groups = cluster.all_groups
        self._groups = groups
        self._worker_share, self._server_share = cluster.shares
        self._latency_s = cluster.latency_s
        overhead_s = cluster.overhead_s
        self._up = [Link(cluster.bytes_per_second(group), overhead_s, rate) for group in groups]
        self._down = [Link(cluster.bytes_per_second(group), 0.0, rate) for group in groups]
        self._server_up = Link(cluster.bytes_per_second(), overhead_s, rate)
        self._server_down = Link(cluster.bytes_per_second(), 0.0, rate)
        self._local = _local_links(cluster)
        self._meeting = _Meeting(len(groups))
        self._queues: list[deque[tuple[Part, float]]] = [deque() for _ in groups]
        """What each group has handed to its sockets behind the push on the link, and from when on it can go."""
        self._pushing = [False] * len(groups)

    @property
    def num_bytes(self) -> float:
        return self._up[0].num_bytes

    def start(self, now: float, group: int, part: Part) -> Iterable[Arrival]:
        gathers = part.stage is Stage.ALL_GATHER
        summed_s = now if gathers else _serve_locally(self._local, group, now, part.length)
        self._queues[group].append((part, summed_s))
        return self._serve_queue(now, group)

    def progressed(self, now: float, group: int, part: Part, progress: Progress) -> Iterable[Arrival]:
        if progress is Progress.SENT:
            self._pushing[group] = False
            return self._serve_queue(now, group)
        if not self._meeting.last(part):
            return ()
        if part.stage is Stage.REDUCE_SCATTER:
            return [(now, each, part, Progress.FINISHED) for each in range(len(self._groups))]
        return self._pull(now, range(len(self._groups)), part)

    def _serve_queue(self, now: float, group: int) -> list[Arrival]:
        """Put on the link what is next: the request for a pull, which has no bytes, or one push."""
        queue = self._queues[group]
        arrivals: list[Arrival] = []
        while queue and not self._pushing[group]:
            part, summed_s = queue.popleft()
            if part.stage is Stage.ALL_GATHER:
                arrivals += self._pull(now, (group,), part)
                continue
            self._pushing[group] = True
            sent_s = self._push(max(now, summed_s), group, part.length)
            arrivals.append((sent_s, group, part, Progress.SENT))
            arrivals.append((sent_s + self._latency_s, group, part, Progress.HALF_WAY))
        return arrivals

    def _push(self, now: float, group: int, length: int) -> float:
        """One host of the group, and with it all of them, sends its gradient to the owners: when it has left."""
        hosts = self._groups[group].hosts
        end = self._up[group].serve(now, length * (1 - self._worker_share))
        if self._worker_share:
            for owner, down in enumerate(self._down):
                end = max(end, down.serve(now, length * self._worker_share * (hosts - (owner == group))))
        if self._server_share:
            end = max(end, self._server_down.serve(now, length * self._server_share * hosts))
        return end

    def _pull(self, now: float, readers: Iterable[int], part: Part) -> list[Arrival]:
        """The owners send the sum to every host of the groups that read it."""
        arrivals: list[Arrival] = []
        for reader in readers:
            hosts = self._groups[reader].hosts
            end = self._down[reader].serve(now, part.length * (1 - self._worker_share))
            if self._worker_share:
                for owner, up in enumerate(self._up):
                    end = max(end, up.serve(now, part.length * self._worker_share * (hosts - (owner == reader))))
            if self._server_share:
                end = max(end, self._server_up.serve(now, part.length * self._server_share * hosts))
            end = _serve_locally(self._local, reader, end, part.length)
            arrivals.append((end + self._latency_s, reader, part, Progress.FINISHED))
        return arrivals


class Ring:
    """Collectives over a ring. An operation begins when every group has issued it and a channel is free."""

    def __init__(self, cluster: Cluster, rate: Rate) -> None:
        groups = cluster.all_groups
        self._num_groups = len(groups)
        self._workers = cluster.workers
        self._split = cluster.architecture is Architecture.RSAG
        self._latency_s = cluster.latency_s
        slowest = min(cluster.bytes_per_second(group) for group in groups)
        self._wire = Link(slowest, cluster.overhead_s, rate)
        self._channels = [0.0] * cluster.operations_in_flight
        self._local = _local_links(cluster)
        self._meeting = _Meeting(self._num_groups)

    @property
    def num_bytes(self) -> float:
        return self._wire.num_bytes

    def start(self, now: float, group: int, part: Part) -> Iterable[Arrival]:
        if not self._meeting.last(part):
            return ()
        if part.stage is not Stage.ALL_GATHER:
            now = _serve_locally(self._local, group, now, part.length)
        if part.stage is not Stage.SYNC:
            return self._finished(self._operation(now, part.length, 1), part)
        if self._split:
            return ((self._operation(now, part.length, 1), group, part, Progress.HALF_WAY),)
        return self._finished(self._operation(now, part.length, 2), part)

    def progressed(self, now: float, group: int, part: Part, progress: Progress) -> Iterable[Arrival]:  # noqa: ARG002
        return self._finished(self._operation(now, part.length, 1), part)

    def _operation(self, now: float, length: int, halves: int) -> float:
        rounds = halves * (self._workers - 1)
        begin = max(now, self._channels[0])
        end = self._wire.serve(begin, length * rounds / self._workers) + rounds * self._latency_s
        heapreplace(self._channels, end)
        return end

    def _finished(self, end: float, part: Part) -> list[Arrival]:
        if part.stage is not Stage.REDUCE_SCATTER:
            end = _serve_locally(self._local, 0, end, part.length)
        return [(end, group, part, Progress.FINISHED) for group in range(self._num_groups)]


def _local_links(cluster: Cluster) -> list[Link]:
    """The memory of each group's host, where several workers share one."""
    if cluster.workers_per_host == 1:
        return []
    # Each of w workers sends and receives (w-1)/w of the bytes in each of the two local halves.
    per_worker = (cluster.workers_per_host - 1) / cluster.workers_per_host
    rate = Rate([(0.0, 1.0)])
    return [Link(cluster.local_gbps * 1e9 / 8 / per_worker, 0.0, rate) for _ in cluster.all_groups]


def _serve_locally(links: list[Link], group: int, now: float, length: int) -> float:
    return links[group].serve(now, length) if links else now
