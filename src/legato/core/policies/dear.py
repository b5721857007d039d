"""DeAR: Zhang et al., "Decoupling the All-Reduce Primitive for Accelerating Distributed Deep Learning", ICDCS'23."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import fill
from legato.core.part import Stage
from legato.core.plan import Plan
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

    def plan(
        self,
        tensors: Sequence[Tensor],
        *,
        partition_bytes: int | None = None,
        credit_bytes: int | None = None,
        timing: Timing | None = None,  # noqa: ARG002
    ) -> Plan:
        buckets = fill(tensors, self.bucket_bytes)
        return Plan(policy=self, buckets=buckets, partition_bytes=partition_bytes, credit_bytes=credit_bytes)

    def describe(self) -> str:
        return f"{self.name}(bucket_bytes={self.bucket_bytes})"
