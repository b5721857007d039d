"""Static plans: what rank 0 proposes to ranks that must all issue the same operations in the same order."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from legato.core import Plan, Policy, Tensor
from legato.core.fusion import Buckets, set_apart
from legato.core.policies import POLICIES, by_name
from legato.errors import InputError
from legato.exchange.plans import fitted
from legato.sim import Architecture, Cluster
from legato.sim.rehearsal import Rehearsal, assumed_ready_s, rehearse
from legato.tuning.twin.transports import OPERATIONS_IN_FLIGHT, STARTUP_S

MIB = 1 << 20
NUM_BUCKETS = (32, 12)
"""Into how many buckets a model is divided where nothing else is asked for, the first until times are known; as they
are filled, it becomes a few operations more.

An operation that is under way cannot be overtaken, so each costs its share of a step where it is in the way. In the
simulator (bytescheduler on vgg16, resnet50, bert-large, gpt2; communication as long as computation) an iteration is
1.01 to 1.02 T* with 100 operations, 1.03 to 1.04 with 50, 1.07 to 1.10 with 25 and 1.16 to 1.18 with 13.
"""
OPERATION_S = 0.5e-3
"""What an operation costs the processors, which no rehearsal knows. Where communication takes many times as long as
computation there is nothing to overtake, and this is all that is left: GPT-2 at 12 times, steps of 0.4 s over Gloo, is
1.07 T* with 32 buckets and 1.04 with 12."""
LEAST_BYTES = MIB // 2
"""Less than this does not pay an operation's start-up: Gloo's all-reduce reaches 0.93 of 1 Gbit/s with 512 KiB and 0.6
with 256."""
MOST_BYTES = 25 * MIB
"""More than this is not needed to pay it: DDP's buckets."""

ASSUMED_GBPS = 10.0
"""Bandwidth of the links until it has been observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticConfig:
    """How static plans are made."""

    policy: str | Policy = "auto"
    """`auto`, the name of a policy, or a policy. Only its order counts: buckets and their size are the planner's.

    `auto` is rsag where the backend has a reduce-scatter of its own (NCCL), and bytescheduler elsewhere: over Gloo an
    all-to-all reaches 0.7 to 0.8 of 1 Gbit/s between 4 hosts, all to one in turns, and an all-reduce 0.94.
    """
    bucket_bytes: int | None = None
    """Neighbours are merged until they reach half of this, and what is larger than this is cut; None goes by the model.

    Operations of half to whole size then: cut where they are merged, many would leave a crumb behind.
    """
    credit_bytes: int | None = None
    """Bytes that may be in flight at once; None is as many operations as the backend works on."""
    fusion_bytes: int | None = None
    """What is smaller is merged until it reaches this; None is half of a bucket."""
    given: Plan | None = None
    """A plan that is to be followed as it is, for all tensors but the last, which is the synchronizer's own."""
    operations_in_flight: int = OPERATIONS_IN_FLIGHT
    """How many operations the backend works on at once."""
    startup_s: float = STARTUP_S
    """What an operation costs before its first byte."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, str) and self.policy not in ("auto", *POLICIES):
            accepted = ", ".join(("auto", *POLICIES))
            raise InputError(f"policy {self.policy!r} is unknown; accepted: {accepted}, or a policy of your own")
        for name in ("bucket_bytes", "credit_bytes", "fusion_bytes", "operations_in_flight"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"c10d: {name}={value} must be more than 0")


class StaticPlanner:
    """Makes plans from the order of first use and from what a runtime has recorded."""

    def __init__(
        self,
        config: StaticConfig,
        tensors: Sequence[Tensor],
        kinds: Sequence[Hashable],
        *,
        num_ranks: int,
        is_nccl: bool,
    ) -> None:
        """Tensors of different `kinds` (dtype, device, …) never share a bucket."""
        self._config = config
        self._tensors = tensors
        self._kinds = kinds
        self._num_ranks = num_ranks
        chosen = ("rsag" if is_nccl else "bytescheduler") if config.policy == "auto" else config.policy
        self.policy = by_name(chosen) if isinstance(chosen, str) else chosen

    def plan(
        self,
        order: Sequence[int],
        *,
        ready_s: Sequence[float] | None = None,
        bytes_per_s: float | None = None,
        measured: bool = False,
    ) -> Plan:
        """For tensors in this order of first use: from when each gradient was ready and how fast halves of sums moved,
        or by assumption. Where averages are `measured`, the first update waits for all first halves, so they go before
        second halves; a given plan stays as it is."""
        priority = {index: place for place, index in enumerate(order)}
        tensors = [replace(tensor, priority=priority[index]) for index, tensor in enumerate(self._tensors)]
        cluster = self._cluster(None if ready_s is None else bytes_per_s)
        if self._config.given is not None:
            plan = self._with_last(fitted(self._config.given, tensors[:-1]))
            assumed = assumed_ready_s(tensors, sum(tensor.num_bytes for tensor in tensors) * cluster.seconds_per_byte)
            return rehearse(plan, tensors, ready_s or assumed, cluster).plan if plan.sequence is None else plan
        if ready_s is None:
            # Where nothing is known, scheduling matters most when communication takes as long as computation.
            num_bytes = sum(tensor.num_bytes for tensor in tensors)
            ready_s = assumed_ready_s(tensors, num_bytes * cluster.seconds_per_byte)
            return self._rehearse(self._sizes()[0], tensors, ready_s, cluster, measured).plan
        played = [self._rehearse(size, tensors, ready_s, cluster, measured) for size in self._sizes()]
        return min(played, key=lambda each: _step_s(each, order, ready_s)).plan

    def _with_last(self, given: Plan) -> Plan:
        """The given plan, and one more bucket that starts last: it says which gradients there were."""
        last = len(self._tensors) - 1
        for bucket in given.buckets:
            if len({self._kinds[index] for index in bucket}) > 1:
                names = ", ".join(self._tensors[index].name for index in bucket)
                raise InputError(f"plan: over c10d a bucket holds tensors of one dtype, and these differ: {names}")
        worst = max((rank for ranks in given.ranks for rank in ranks), default=0) + 1
        turns = tuple((stage, len(given.buckets)) for stage in given.stages)
        return replace(
            given,
            buckets=(*given.buckets, (last,)),
            ranks=tuple((*ranks, worst) for ranks in given.ranks),
            partition_bytes=(*given.partition_bytes, None),
            sequence=None if given.sequence is None else (*given.sequence, *turns),
        )

    def _sizes(self) -> list[int]:
        """Of buckets, the smallest first."""
        num_bytes = sum(tensor.num_bytes for tensor in self._tensors)
        sizes = [min(max(num_bytes // number, LEAST_BYTES), MOST_BYTES) for number in NUM_BUCKETS]
        if self._config.bucket_bytes is not None:
            sizes = [self._config.bucket_bytes]
        # Multiples of the ranks' items, so that they share whatever is cut off equally.
        unit = max(tensor.item_bytes for tensor in self._tensors) * self._num_ranks
        return [max(size // unit, 1) * unit for size in sizes]

    def _rehearse(
        self, cut: int, tensors: Sequence[Tensor], ready_s: Sequence[float], cluster: Cluster, measured: bool
    ) -> Rehearsal:
        plan = self.policy.plan(
            tensors,
            partition_bytes=cut,
            credit_bytes=self._config.credit_bytes or self._config.operations_in_flight * cut,
            buckets=self._buckets(tensors, cut),
        )
        return rehearse(plan.first_halves_first() if measured else plan, tensors, ready_s, cluster)

    def _cluster(self, bytes_per_s: float | None) -> Cluster:
        gbps = ASSUMED_GBPS
        if bytes_per_s is not None and self._num_ranks > 1:
            # Each half of a sum sends all but a rank's own piece.
            gbps = bytes_per_s * (self._num_ranks - 1) / self._num_ranks * 8e-9
        return Cluster(
            workers=self._num_ranks,
            gbps=gbps,
            architecture=Architecture.ALLREDUCE,
            latency_s=self._config.startup_s / max(self._num_ranks - 1, 1),
            operations_in_flight=self._config.operations_in_flight,
        )

    def _buckets(self, tensors: Sequence[Tensor], cut: int) -> Buckets:
        """Of one kind each, whatever the policy would merge: starting an operation costs more than it could gain."""
        return buckets_of(tensors, self._kinds, self._config.fusion_bytes or max(cut // 2, 1))


def buckets_of(tensors: Sequence[Tensor], kinds: Sequence[Hashable], limit_bytes: int) -> Buckets:
    """Tensors that reach `limit_bytes` alone; the others with those of their own kind, until they reach it."""
    by_kind: dict[Hashable, list[int]] = {}
    for index, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(index)
    return tuple(
        tuple(members[place] for place in bucket)
        for members in by_kind.values()
        for bucket in set_apart([tensors[index] for index in members], limit_bytes)
    )


def _step_s(rehearsal: Rehearsal, order: Sequence[int], ready_s: Sequence[float]) -> float:
    """From the first gradient to the end of the next forward pass, if each layer takes half as long as in backward."""
    later = [*order[1:], order[-1]]
    now = max(ready_s)
    for index, after in zip(order, later, strict=True):
        now = max(now, rehearsal.arrived_s[index]) + max(ready_s[index] - ready_s[after], 0.0) / 2
    return now + OPERATION_S * len(rehearsal.plan.sequence or ())
