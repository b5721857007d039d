"""Policies that send what the next forward pass needs first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, merge_small, one_per_tensor
from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.workload import Timing


class P3(Policy):
    """Small slices by priority, handed to the network one after the other: Jayarajan et al., SysML'19."""

    name = "p3"
    partition_bytes = 160 * 1024
    credit_bytes = 1
    """Less than any slice, so that one is in flight at a time."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.priority,)


@dataclass(frozen=True)
class ByteScheduler(Policy):
    """Parts by priority within a window of credit: the optimal schedule as parts and credit go to zero.

    Peng et al., "A Generic Communication Scheduler for Distributed DNN Training", SOSP'19, whose defaults are a million
    elements of partition and four million of credit.
    """

    name: ClassVar[str] = "bytescheduler"
    partition_bytes = 4_000_000
    credit_bytes = 16_000_000

    fusion_bytes: int = 0
    """Merge neighbours up to this size: for transports where starting an operation is dear. 0: no fusion."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.priority,)

    def buckets(self, tensors: Sequence[Tensor], timing: Timing | None) -> Buckets:  # noqa: ARG002
        return merge_small(tensors, self.fusion_bytes) if self.fusion_bytes else one_per_tensor(tensors)


@dataclass(frozen=True)
class PushFirst(ByteScheduler):
    """As bytescheduler, but no sum goes home while contributions are waiting to leave: legato's own, for its engine.

    A sum needs everybody's contribution. Where sums go first, a rank that is a little behind sends others what they
    need while all of them wait for what only it has, and the links of those ahead run dry. The most urgent sum loses
    nothing by it: every byte that goes before it has to go before the step is over.
    """

    name: ClassVar[str] = "pushfirst"
    stages: ClassVar[tuple[Stage, ...]] = (Stage.REDUCE_SCATTER, Stage.ALL_GATHER)

    def order(self, bucket: Bucket, stage: Stage) -> Order:
        return (stage, bucket.priority)
