"""Plans for the native engine: what rank 0 writes from a policy, or reads from a file, and all ranks follow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from legato.core import Plan, Policy, Tensor
from legato.core.fusion import merge_small
from legato.core.policies import POLICIES, PushFirst
from legato.errors import InputError
from legato.exchange.plans import fitted
from legato.tuning.candidate import Candidate

FUSION_BYTES = 256 << 10
"""Neighbours that fit in this go to the engine together. Nothing is copied, so a bucket only saves calls; it is no
larger than the engine's own part, so that none waits long for the gradients beside it."""
PART_S = 4e-3
"""What a part may take on its link. Shorter parts overtake sooner; each costs a processor some 5 µs (decision 012)."""
LEAST_PARTITION_BYTES = 16 << 10
GRAIN_BYTES = 64
"""Of parts that are shares: a whole number of items of any dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePlanner:
    """Writes plans as `schedule` was asked to."""

    policy: str | Policy = "auto"
    """`auto`, the name of a policy, or a policy. `auto` has pushfirst's order without a limit on what is in flight:
    whatever is more urgent overtakes at the socket."""
    partition_bytes: int | None = None
    """Largest part; None leaves it to the policy, and where that does not cut, to the transport."""
    credit_bytes: int | None = None
    """Bytes in flight at once; None leaves it to the policy."""
    fusion_bytes: int | None = None
    """Neighbours are merged up to this; None leaves it to the policy."""
    given: Plan | None = None
    """A plan that is to be followed as it is."""
    bytes_per_s: float | None = None
    """What a link has carried at the start of the job; None where nothing has shown it."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, str) and self.policy not in ("auto", *POLICIES):
            accepted = ", ".join(("auto", *POLICIES))
            raise InputError(f"policy {self.policy!r} is unknown; accepted: {accepted}, or a policy of your own")

    def write(self, tensors: Sequence[Tensor], partition_bytes: int | None, num_owners: int = 1) -> Plan:
        """For tensors with priorities by first use; `partition_bytes` is the transport's, and `num_owners` members sum.

        A policy that thinks of a ring, where every link carries a share of every part, may cut so coarsely that one
        owner gets a whole tensor: such a tensor is cut into a part for each.
        """
        if self.given is not None:
            return fitted(self.given, tensors)
        policy = POLICIES.get(self.policy) if isinstance(self.policy, str) else self.policy
        fusion_bytes = FUSION_BYTES if policy is None and self.fusion_bytes is None else self.fusion_bytes
        buckets = merge_small(tensors, fusion_bytes) if fusion_bytes else None
        if policy is None:
            cut = self.partition_bytes or self._short(partition_bytes)
            plan = PushFirst().plan(tensors, partition_bytes=cut, buckets=buckets)
            plan = replace(plan, policy="auto", credit_bytes=self.credit_bytes)
        else:
            plan = policy.plan(
                tensors, partition_bytes=self.partition_bytes, credit_bytes=self.credit_bytes, buckets=buckets
            )
        plan = _for_engine(plan, partition_bytes)
        return plan if self.partition_bytes else _shared_out(plan, tensors, partition_bytes, num_owners)

    def _short(self, partition_bytes: int | None) -> int | None:
        """The transport's partition, or what takes no longer than a part should where links are slow."""
        if self.bytes_per_s is None or partition_bytes is None:
            return partition_bytes
        short = max(int(self.bytes_per_s * PART_S), LEAST_PARTITION_BYTES)
        return min(1 << short.bit_length() - 1, partition_bytes)

    def follow(self, candidate: Candidate, tensors: Sequence[Tensor], partition_bytes: int | None) -> Plan:
        """What a tuner has chosen, fused as it is here."""
        if self.policy == "auto":
            candidate = candidate.in_engine()
        plan = candidate.plan(tensors)
        if all(len(bucket) == 1 for bucket in plan.buckets):
            buckets = merge_small(tensors, self.fusion_bytes or FUSION_BYTES)
            plan = candidate.plan(tensors, buckets=buckets)
        return _for_engine(plan, partition_bytes)


def _for_engine(plan: Plan, partition_bytes: int | None) -> Plan:
    """The engine cuts each tensor by itself, and spreads what no policy has cut over its servers."""
    cut = tuple(partition_bytes if each is None else each for each in plan.partition_bytes)
    return replace(plan, flat=False, partition_bytes=cut)


def _shared_out(plan: Plan, tensors: Sequence[Tensor], least_bytes: int | None, num_owners: int) -> Plan:
    """No part is larger than an owner's share of the largest tensor beside it, unless that is small anyway."""

    def cut(bucket: Sequence[int], part_bytes: int | None) -> int | None:
        num_bytes = max(tensors[place].num_bytes for place in bucket)
        share = max(math.ceil(num_bytes / num_owners / GRAIN_BYTES) * GRAIN_BYTES, least_bytes or 1)
        is_whole = part_bytes is None or part_bytes > share
        return share if is_whole and num_bytes > share else part_bytes

    return replace(plan, partition_bytes=tuple(map(cut, plan.buckets, plan.partition_bytes)))
