"""ByteScheduler: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training", SOSP'19."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import merge_small, one_per_tensor
from legato.core.part import Stage
from legato.core.plan import Plan
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.timing import Timing

PARTITION_BYTES = 4_000_000
CREDIT_BYTES = 16_000_000


@dataclass(frozen=True)
class ByteScheduler(Policy):
    """Parts by priority within a window of credit: the optimal schedule as parts and credit go to zero.

    The paper's defaults are a million elements of partition and four million of credit.
    """

    name: ClassVar[str] = "bytescheduler"

    fusion_bytes: int = 0
    """Merge neighbours up to this size: for transports where starting an operation is dear. 0: no fusion."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.priority,)

    def plan(
        self,
        tensors: Sequence[Tensor],
        *,
        partition_bytes: int | None = None,
        credit_bytes: int | None = None,
        timing: Timing | None = None,  # noqa: ARG002
    ) -> Plan:
        buckets = merge_small(tensors, self.fusion_bytes) if self.fusion_bytes else one_per_tensor(tensors)
        return Plan(
            policy=self,
            buckets=buckets,
            partition_bytes=PARTITION_BYTES if partition_bytes is None else partition_bytes,
            credit_bytes=CREDIT_BYTES if credit_bytes is None else credit_bytes,
        )

    def describe(self) -> str:
        return f"{self.name}(fusion_bytes={self.fusion_bytes})"
