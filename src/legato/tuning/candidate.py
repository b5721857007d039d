"""Candidates: the plans a tuner chooses among, by the three values that decide their speed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from legato.core import Plan, Tensor, Timing
from legato.core.policies import ReduceScatterAllGather, by_name
from legato.errors import InputError
from legato.units import format_bytes

KIB = 1 << 10


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A plan before it is applied to tensors; None leaves a value to the policy."""

    policy: str
    partition_bytes: int | None = None
    credit_bytes: int | None = None

    def __post_init__(self) -> None:
        by_name(self.policy)
        for name, value in (("partition_bytes", self.partition_bytes), ("credit_bytes", self.credit_bytes)):
            if value is not None and value < 1:
                raise InputError(f"candidate: {name}={value} must be at least 1, or None")

    def __str__(self) -> str:
        if self.partition_bytes is None:
            return self.policy
        window = "" if self.credit_bytes is None else f", {self.credit_bytes / self.partition_bytes:.3g} in flight"
        return f"{self.policy} in parts of {format_bytes(self.partition_bytes)}{window}"

    def plan(self, tensors: Sequence[Tensor], timing: Timing | None = None) -> Plan:
        """The plan for these tensors. What `rsag` merges and cuts to is one size: the partition."""
        policy = by_name(self.policy)
        if self.partition_bytes is not None and isinstance(policy, ReduceScatterAllGather):
            policy = ReduceScatterAllGather(bucket_bytes=self.partition_bytes)
        return policy.plan(tensors, partition_bytes=self.partition_bytes, credit_bytes=self.credit_bytes, timing=timing)


BASELINE = Candidate("wfbp")
"""What a framework does without a scheduler: a candidate must beat it, or it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Policies × partitions × credits. Credit is counted in parts, as in AutoByte: 1 is stop and wait."""

    policies: tuple[str, ...] = ("bytescheduler", "rsag")
    """Policies that follow partition and credit."""
    partition_bytes: tuple[int, ...] = tuple(64 * KIB << power for power in range(10))
    """Sizes of a part, rising: 64 KiB to 32 MiB."""
    credit_parts: tuple[int, ...] = (1, 2, 3, 4, 8, 16)
    """Parts in flight at once, rising."""

    def __post_init__(self) -> None:
        for name in ("policies", "partition_bytes", "credit_parts"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise InputError(f"space: {name}={values} must hold something, and nothing twice")
        for name in ("partition_bytes", "credit_parts"):
            values = getattr(self, name)
            if values[0] < 1 or list(values) != sorted(values):
                raise InputError(f"space: {name}={values} must rise from at least 1")
        for policy in self.policies:
            by_name(policy)

    def __len__(self) -> int:
        return len(self.policies) * len(self.partition_bytes) * len(self.credit_parts)

    def __iter__(self) -> Iterator[Candidate]:
        for policy in self.policies:
            for partition_bytes in self.partition_bytes:
                for parts in self.credit_parts:
                    yield Candidate(policy, partition_bytes, parts * partition_bytes)

    def at(self, policy: int, partition: int, credit: int) -> Candidate:
        """The candidate at these places of the three lists."""
        partition_bytes = self.partition_bytes[partition]
        return Candidate(self.policies[policy], partition_bytes, self.credit_parts[credit] * partition_bytes)

    @property
    def start(self) -> Candidate:
        """Where a tuner that knows nothing begins: ByteScheduler's defaults, or what is nearest to them."""
        partition = min(
            range(len(self.partition_bytes)), key=lambda place: abs(self.partition_bytes[place] - 4_000_000)
        )
        credit = min(range(len(self.credit_parts)), key=lambda place: abs(self.credit_parts[place] - 4))
        return self.at(0, partition, credit)
