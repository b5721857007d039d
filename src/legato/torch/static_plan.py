"""Static plans: what rank 0 proposes to ranks that must all issue the same operations in the same order."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from legato.core import Plan, Policy, Tensor
from legato.core.fusion import Buckets
from legato.core.policies import ByteScheduler, DeAR, ReduceScatterAllGather, WaitFree
from legato.errors import InputError
from legato.runtime import Record
from legato.sim import Architecture, Cluster
from legato.sim.rehearsal import assumed_ready_s, rehearsed

MIB = 1 << 20

_POLICIES: dict[str, Callable[[int], Policy]] = {
    "wfbp": lambda bucket_bytes: WaitFree(bucket_bytes=bucket_bytes),
    "bytescheduler": lambda bucket_bytes: ByteScheduler(fusion_bytes=bucket_bytes),
    "dear": lambda bucket_bytes: DeAR(bucket_bytes=bucket_bytes),
    "rsag": lambda bucket_bytes: ReduceScatterAllGather(bucket_bytes=bucket_bytes),
}
POLICIES = ("auto", *_POLICIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticConfig:
    """How static plans are made."""

    policy: str = "rsag"
    """One of `POLICIES`."""
    bucket_bytes: int = 4 * MIB
    """Neighbours are merged up to this size, and what is larger is cut into parts of it."""
    operations_in_flight: int = 2
    """How many operations the backend works on at once: Gloo has two threads."""
    assumed_gbps: float = 10.0
    """Bandwidth of the links until it has been observed."""
    startup_s: float = 0.5e-3
    """What an operation costs before its first byte."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(f"policy {self.policy!r} does not go with c10d; accepted: {', '.join(POLICIES)}")
        for name in ("bucket_bytes", "operations_in_flight", "assumed_gbps"):
            if not getattr(self, name) > 0:
                raise InputError(f"c10d: {name}={getattr(self, name)} must be more than 0")

    def make_policy(self) -> Policy:
        return _POLICIES["rsag" if self.policy == "auto" else self.policy](self.bucket_bytes)


class StaticPlanner:
    """Makes plans from the order of first use and from what a runtime has recorded."""

    def __init__(
        self, config: StaticConfig, tensors: Sequence[Tensor], kinds: Sequence[Hashable], num_ranks: int
    ) -> None:
        """Tensors of different `kinds` (dtype, device) never share a bucket."""
        self._config = config
        self._tensors = tensors
        self._kinds = kinds
        self._num_ranks = num_ranks
        self.policy = config.make_policy()

    def plan(self, order: Sequence[int], record: Record | None = None) -> Plan:
        """For tensors in this order of first use; from a record, or by assumption."""
        priority = {index: place for place, index in enumerate(order)}
        tensors = [replace(tensor, priority=priority[index]) for index, tensor in enumerate(self._tensors)]
        cut = self._config.bucket_bytes
        plan = self.policy.plan(tensors, partition_bytes=cut, credit_bytes=self._config.operations_in_flight * cut)
        plan = replace(plan, buckets=self._of_one_kind(plan.buckets))
        ready_s = record.ready_s() if record is not None else None
        cluster = self._cluster(record if ready_s is not None else None)
        if ready_s is None:
            # Where nothing is known, scheduling matters most when communication takes as long as computation.
            num_bytes = sum(tensor.num_bytes for tensor in tensors)
            ready_s = assumed_ready_s(tensors, num_bytes * cluster.seconds_per_byte)
        return rehearsed(plan, tensors, ready_s, cluster)

    def _cluster(self, record: Record | None) -> Cluster:
        gbps = self._config.assumed_gbps
        if record is not None and record.busy_s > 0 and record.num_bytes:
            # Each half of a sum sends all but a rank's own piece.
            sent = record.num_bytes * (self._num_ranks - 1) / self._num_ranks
            gbps = sent / record.busy_s * 8e-9
        return Cluster(
            workers=self._num_ranks,
            gbps=gbps,
            architecture=Architecture.ALLREDUCE,
            latency_s=self._config.startup_s / max(self._num_ranks - 1, 1),
            operations_in_flight=self._config.operations_in_flight,
        )

    def _of_one_kind(self, buckets: Buckets) -> Buckets:
        divided: list[tuple[int, ...]] = []
        for bucket in buckets:
            kinds: dict[Hashable, list[int]] = {}
            for index in bucket:
                kinds.setdefault(self._kinds[index], []).append(index)
            divided += map(tuple, kinds.values())
        return tuple(divided)
