"""Plans: what every rank agrees on before a step begins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from legato.core.fusion import Buckets
from legato.core.part import Stage
from legato.core.task import Tensor
from legato.errors import PlanError

if TYPE_CHECKING:
    from legato.core.policy import Policy

Turn = tuple[Stage, int]
"""(stage, bucket): one part of that bucket may start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Policy, partition, credit and buckets. Every rank holds the same one; it changes only at an agreed step."""

    policy: Policy
    """Decides what is started next."""
    buckets: Buckets
    """Which tensors travel together: every tensor in exactly one bucket."""
    partition_bytes: int | None = None
    """Largest part; None sends a bucket whole."""
    credit_bytes: int | None = None
    """Bytes that may be in flight at once; None is no limit."""
    sequence: tuple[Turn, ...] | None = None
    """The order in which every rank starts the parts of a step: the n-th mention of a bucket's stage is its n-th part.

    For transports that match operations by order, where ranks that decide alone hang. None: what is ready and ranks
    first, on each rank by itself.
    """

    def __post_init__(self) -> None:
        for name, value in (("partition_bytes", self.partition_bytes), ("credit_bytes", self.credit_bytes)):
            if value is not None and value < 1:
                raise PlanError(f"plan: {name}={value} must be at least 1, or None for no limit")

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raise unless every tensor is in exactly one bucket."""
        listed = sorted(index for bucket in self.buckets for index in bucket)
        if listed != list(range(len(tensors))):
            raise PlanError(f"plan: the buckets must hold each of the {len(tensors)} tensors once, they hold {listed}")

    def describe(self) -> dict[str, object]:
        """The plan as plain values, the same on every rank that holds the same plan."""
        return {
            "policy": self.policy.describe(),
            "partition_bytes": self.partition_bytes,
            "credit_bytes": self.credit_bytes,
            "buckets": [list(bucket) for bucket in self.buckets],
            **({} if self.sequence is None else {"sequence": [list(turn) for turn in self.sequence]}),
        }

    def to_json(self) -> str:
        return json.dumps(self.describe(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, policy: Policy) -> Plan:
        """Read what `to_json` wrote on another rank. `policy` is this rank's own: if it differs, so do the digests."""
        try:
            document = json.loads(text)
            sequence = document.get("sequence")
            return cls(
                policy=policy,
                buckets=tuple(tuple(bucket) for bucket in document["buckets"]),
                partition_bytes=document["partition_bytes"],
                credit_bytes=document["credit_bytes"],
                sequence=None if sequence is None else tuple((Stage(stage), bucket) for stage, bucket in sequence),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"plan: this is none: {text:.80}") from error

    def digest(self) -> str:
        """A short hash that ranks compare before they follow the plan."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]
