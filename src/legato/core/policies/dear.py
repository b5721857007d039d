"""DeAR: Zhang et al., "Decoupling the All-Reduce Primitive for Accelerating Distributed Deep Learning", ICDCS'23."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, fill
from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.timing import Timing


@dataclass(frozen=True)
class DeAR(Policy):
    """Reduce-scatter during backward as gradients come, all-gather during forward as layers need it.

    No operation of the second half starts before the first half is over everywhere.
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
