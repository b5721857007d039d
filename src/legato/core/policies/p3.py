"""P3, priority-based parameter propagation: Jayarajan et al., SysML'19."""

from collections.abc import Sequence

from legato.core.part import Stage
from legato.core.plan import Plan
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.timing import Timing

SLICE_BYTES = 160 * 1024


class P3(Policy):
    """Small slices by priority, stop and wait: the next slice leaves when the one before is through."""

    name = "p3"

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.priority,)

    def plan(
        self,
        tensors: Sequence[Tensor],
        *,
        partition_bytes: int | None = None,
        credit_bytes: int | None = None,
        timing: Timing | None = None,
    ) -> Plan:
        slice_bytes = SLICE_BYTES if partition_bytes is None else partition_bytes
        return super().plan(
            tensors,
            partition_bytes=slice_bytes,
            credit_bytes=slice_bytes if credit_bytes is None else credit_bytes,
            timing=timing,
        )
