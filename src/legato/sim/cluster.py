"""Clusters: the machines and links that a workload is simulated on."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from legato.core.shards import balanced
from legato.errors import InputError


class Architecture(StrEnum):
    """How sums are made."""

    PS = "ps"
    """A parameter server: push, sum, pull."""
    ALLREDUCE = "allreduce"
    """A ring all-reduce, one operation per part."""
    RSAG = "rsag"
    """A ring whose all-reduces are issued as reduce-scatter and all-gather, with room for something else between."""
    NATIVE = "native"
    """legato's engine: a part has one owner, urgent parts overtake at the socket, sums come back by themselves."""


class Ownership(StrEnum):
    """Who owns the sums of a parameter server."""

    JOINT = "joint"
    """Every worker serves 1/n of the bytes; no extra machines."""
    SEPARATE = "separate"
    """The servers own everything."""
    MIXED = "mixed"
    """Workers and servers share so that no link is busier than another (BytePS, OSDI'20)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Hosts that are alike: one of them is simulated for all."""

    hosts: int
    """How many."""
    speed: float = 1.0
    """Relative speed of computation; 0.5 is a straggler at half speed."""
    gbps: float | None = None
    """Bandwidth of their links, where it differs from the cluster's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """Another job that takes a share of every link for a while."""

    start_s: float
    stop_s: float
    share: float
    """Fraction of the bandwidth it takes, 0 to 1 (not included)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts, links and how sums are made."""

    workers: int
    """Hosts that train. With several workers on a host, see `workers_per_host`."""
    gbps: float
    """Bandwidth of a link in each direction (β is its inverse)."""
    architecture: Architecture = Architecture.PS
    servers: int = 0
    """Extra machines of a parameter server."""
    deployment: Ownership = Ownership.JOINT
    latency_s: float = 0.0
    """α: time of one hop before the first byte arrives."""
    overhead_s: float = 0.0
    """Time the sender's link is lost to each operation: system calls, start of a kernel, acknowledgement."""
    overtaking: bool = False
    """Whether urgent parts overtake those in flight, as in the native engine: a large window then delays nobody. For
    tuners; simulated links serve first come, first served."""
    operations_in_flight: int = 1
    """How many collectives the ring executes at once; they share its bandwidth."""
    groups: tuple[Group, ...] = ()
    """Hosts that differ; what they leave of `workers` is an ordinary group."""
    workers_per_host: int = 1
    """Workers of one host sum among themselves first, so that a gradient crosses the link once per host."""
    local_gbps: float = 100.0
    """Bandwidth inside a host, for that local sum."""
    rates: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    """How bandwidth changes: (from this second on, factor on every link's bandwidth)."""
    background: tuple[Background, ...] = field(default=())
    """Other jobs on the same links."""

    def __post_init__(self) -> None:
        positive = ("workers", "gbps", "operations_in_flight", "workers_per_host", "local_gbps")
        for name in positive:
            if not getattr(self, name) > 0:
                raise InputError(f"cluster: {name}={getattr(self, name)} must be more than 0")
        for name in ("servers", "latency_s", "overhead_s"):
            if not getattr(self, name) >= 0:
                raise InputError(f"cluster: {name}={getattr(self, name)} must be 0 or more")
        self._check_servers()
        if self.architecture is Architecture.NATIVE and (self.overhead_s or self.workers_per_host > 1):
            raise InputError("cluster: arch native takes no overhead, and one worker per host")
        if sum(group.hosts for group in self.groups) > self.workers:
            raise InputError(f"cluster: the groups have more hosts than workers={self.workers}")
        if any(group.hosts < 1 or not group.speed > 0 or not (group.gbps or 1) > 0 for group in self.groups):
            raise InputError("cluster: a group needs hosts, speed and gbps of more than 0")
        if any(not factor > 0 for _, factor in self.rates) or [t for t, _ in self.rates] != sorted(
            {t for t, _ in self.rates}
        ):
            raise InputError("cluster: rates must be (second, factor > 0) with rising seconds")
        if any(not 0 <= job.share < 1 for job in self.background):
            raise InputError("cluster: a background job's share must be 0 or more and less than 1")

    def _check_servers(self) -> None:
        wants_servers = self.deployment is not Ownership.JOINT
        if wants_servers and self.architecture in (Architecture.ALLREDUCE, Architecture.RSAG):
            raise InputError(f"cluster: arch {self.architecture} has no servers; use arch ps")
        if wants_servers != (self.servers > 0):
            raise InputError(f"cluster: deployment {self.deployment} does not go with servers={self.servers}")

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """The groups that differ, and the ordinary rest."""
        rest = self.workers - sum(group.hosts for group in self.groups)
        return (Group(hosts=rest), *self.groups) if rest else self.groups

    @property
    def simulated(self) -> tuple[Group, ...]:
        """Those that have a worker in a simulation: a group each, or each host where no two are alike."""
        if self.architecture is not Architecture.NATIVE:
            return self.all_groups
        return tuple(replace(group, hosts=1) for group in self.all_groups for _ in range(group.hosts))

    @property
    def shares(self) -> tuple[float, float]:
        """The fraction of all bytes that one worker host and one server own: joint, separate or mixed."""
        worker, server = balanced(self.workers, self.servers, workers_serve=self.deployment is not Ownership.SEPARATE)
        return float(worker), float(server)

    def bytes_per_second(self, group: Group | None = None) -> float:
        """Full rate of a link of that group, or of a server."""
        gbps = self.gbps if group is None or group.gbps is None else group.gbps
        return gbps * 1e9 / 8

    @property
    def seconds_per_byte(self) -> float:
        """Time the busiest link spends on each byte of gradient: what c_i in the bound is made of."""
        n = self.workers
        slowest = min(self.bytes_per_second(group) for group in self.all_groups)
        if self.architecture in (Architecture.ALLREDUCE, Architecture.RSAG):
            return 2 * (n - 1) / n / slowest
        worker_share, server_share = self.shares
        # One direction of a worker's link: its own pushes and the replies it owes to the others.
        worker = ((1 - worker_share) + (n - 1) * worker_share) / slowest
        return max(worker, n * server_share / self.bytes_per_second())
