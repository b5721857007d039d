"""Candidates: the plans a tuner chooses among, by the values that decide their speed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from legato.core import Plan, Tensor
from legato.core.fusion import Buckets, set_apart
from legato.core.policies import ByteScheduler, PushFirst, ReduceScatterAllGather, by_name
from legato.errors import InputError
from legato.units import format_bytes

KIB = 1 << 10
NATIVE, C10D = "native", "c10d"
TRANSPORTS = (NATIVE, C10D)
"""What there is to choose from (docs/transports.md)."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A plan before it is applied to tensors; None leaves a value to the policy, or the transport as it is."""

    policy: str
    partition_bytes: int | None = None
    credit_bytes: int | None = None
    transport: str | None = None

    def __post_init__(self) -> None:
        by_name(self.policy)
        if self.transport not in (None, *TRANSPORTS):
            raise InputError(f"candidate: transport={self.transport!r} is unknown; accepted: {', '.join(TRANSPORTS)}")
        for name, value in (("partition_bytes", self.partition_bytes), ("credit_bytes", self.credit_bytes)):
            if value is not None and value < 1:
                raise InputError(f"candidate: {name}={value} must be at least 1, or None")

    def __str__(self) -> str:
        where = "" if self.transport is None else f" over {self.transport}"
        if self.partition_bytes is None:
            return f"{self.policy}{where}"
        window = "" if self.credit_bytes is None else f", {self.credit_bytes / self.partition_bytes:.3g} in flight"
        return f"{self.policy}{where} in parts of {format_bytes(self.partition_bytes)}{window}"

    def in_engine(self) -> "Candidate":
        """What the native engine runs for it: contributions go first.

        Tuners need not tell the two apart: simulated ranks are never behind each other, so both take the same time.
        """
        return replace(self, policy=PushFirst.name) if self.policy == ByteScheduler.name else self

    def plan(self, tensors: Sequence[Tensor], buckets: Buckets | None = None) -> Plan:
        """The plan for these tensors. What `rsag` merges and cuts to is one size: the partition.

        Over c10d every operation costs a start, so small tensors travel together whatever the policy.
        """
        policy = by_name(self.policy)
        if self.partition_bytes is not None and isinstance(policy, ReduceScatterAllGather):
            policy = ReduceScatterAllGather(bucket_bytes=self.partition_bytes)
        if self.transport == C10D and self.partition_bytes is not None:
            buckets = set_apart(tensors, max(self.partition_bytes // 2, 1))
        plan = policy.plan(
            tensors,
            partition_bytes=self.partition_bytes,
            credit_bytes=self.credit_bytes,
            buckets=buckets,
        )
        return replace(plan, flat=self.transport != NATIVE)


BASELINE = Candidate("wfbp")
"""What a framework does without a scheduler: a candidate must beat it, or it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Transports × policies × partitions × credits. Credit is counted in parts, as in AutoByte: 1 is stop and wait."""

    policies: tuple[str, ...] = ("bytescheduler", "rsag")
    """Policies that follow partition and credit."""
    partition_bytes: tuple[int, ...] = tuple(64 * KIB << power for power in range(10))
    """Sizes of a part, rising: 64 KiB to 32 MiB."""
    credit_parts: tuple[int, ...] = (1, 2, 3, 4, 8, 16)
    """Parts in flight at once, rising."""
    transports: tuple[str | None, ...] = (None,)
    """What may move the parts; None is what does already."""

    def __post_init__(self) -> None:
        for name in ("policies", "partition_bytes", "credit_parts", "transports"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise InputError(f"space: {name}={values} must hold something, and nothing twice")
        for name in ("partition_bytes", "credit_parts"):
            values = getattr(self, name)
            if values[0] < 1 or list(values) != sorted(values):
                raise InputError(f"space: {name}={values} must rise from at least 1")
        for policy, transport in product(self.policies, self.transports):
            Candidate(policy, transport=transport)

    def __len__(self) -> int:
        return len(self.policies) * len(self.partition_bytes) * len(self.credit_parts) * len(self.transports)

    def __iter__(self) -> Iterator[Candidate]:
        every = product(self.transports, self.policies, self.partition_bytes, self.credit_parts)
        for transport, policy, partition_bytes, parts in every:
            yield Candidate(policy, partition_bytes, parts * partition_bytes, transport)

    def at(self, policy: int, partition: int, credit: int, transport: int = 0) -> Candidate:
        """The candidate at these places of the four lists."""
        partition_bytes = self.partition_bytes[partition]
        credit_bytes = self.credit_parts[credit] * partition_bytes
        return Candidate(self.policies[policy], partition_bytes, credit_bytes, self.transports[transport])

    @property
    def start(self) -> Candidate:
        """Where a tuner that knows nothing begins: ByteScheduler's defaults, or what is nearest to them."""
        partition = min(
            range(len(self.partition_bytes)), key=lambda place: abs(self.partition_bytes[place] - 4_000_000)
        )
        credit = min(range(len(self.credit_parts)), key=lambda place: abs(self.credit_parts[place] - 4))
        return self.at(0, partition, credit)
