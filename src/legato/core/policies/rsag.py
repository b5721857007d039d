"""Bucketed reduce-scatter and all-gather by deadline, without a barrier: legato's own policy for all-reduce."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, merge_small
from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.timing import Timing

MIB = 1 << 20


@dataclass(frozen=True)
class ReduceScatterAllGather(Policy):
    """Both halves of every bucket in one queue, ranked by when the forward pass will need the bucket.

    Cutting an all-reduce into its halves doubles the points at which something more urgent can go first, and costs
    neither latency nor bytes. DeAR's barrier is not needed: a gathered bucket is correct as soon as its own
    reduce-scatter is through. At equal deadlines the all-gather goes first, because it completes something.
    """

    name: ClassVar[str] = "rsag"
    stages: ClassVar[tuple[Stage, ...]] = (Stage.REDUCE_SCATTER, Stage.ALL_GATHER)

    bucket_bytes: int = 8 * MIB
    """Neighbours are merged up to this size: small enough to preempt, large enough to pay the start-up.

    A tensor of four times this is cut: in the simulator (docs/simulator.md) cutting earlier costs start-ups on large
    embeddings, which nothing more urgent can preempt, and not cutting at all lets one tensor block the link.
    """

    def order(self, bucket: Bucket, stage: Stage) -> Order:
        return (bucket.priority, -stage)

    @property
    def partition_bytes(self) -> int:
        return 4 * self.bucket_bytes

    @property
    def credit_bytes(self) -> int:
        return self.bucket_bytes

    def buckets(self, tensors: Sequence[Tensor], timing: Timing | None) -> Buckets:  # noqa: ARG002
        return merge_small(tensors, self.bucket_bytes)
