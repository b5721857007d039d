"""Policies that cut a sum in halves, reduce-scatter and all-gather, and order them apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, fill, merge_small
from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.workload import Timing


@dataclass(frozen=True)
class DeAR(Policy):
    """Reduce-scatter during backward as gradients come, all-gather during forward as layers need it.

    No operation of the second half starts before the first half is over everywhere. Zhang et al., "Decoupling the
    All-Reduce Primitive for Accelerating Distributed Deep Learning", ICDCS'23.
    """

    name: ClassVar[str] = "dear"
    stages: ClassVar[tuple[Stage, ...]] = (Stage.REDUCE_SCATTER, Stage.ALL_GATHER)
    stage_barrier: ClassVar[bool] = True

    bucket_bytes: int = 25 << 20
    """A bucket is closed when it reaches this; the paper starts at 25 MB."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:
        return (bucket.priority,) if stage is Stage.ALL_GATHER else ()

    def buckets(self, tensors: Sequence[Tensor], timing: Timing | None) -> Buckets:  # noqa: ARG002
        return fill(tensors, self.bucket_bytes)


@dataclass(frozen=True)
class ReduceScatterAllGather(Policy):
    """Both halves of every bucket in one queue, ranked by when the forward pass will need the bucket: legato's own.

    Cutting an all-reduce into its halves doubles the points at which something more urgent can go first, and costs
    neither latency nor bytes. DeAR's barrier is not needed: a gathered bucket is correct as soon as its own
    reduce-scatter is through. At equal deadlines the all-gather goes first, because it completes something.
    """

    name: ClassVar[str] = "rsag"
    stages: ClassVar[tuple[Stage, ...]] = (Stage.REDUCE_SCATTER, Stage.ALL_GATHER)

    bucket_bytes: int = 8 << 20
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
