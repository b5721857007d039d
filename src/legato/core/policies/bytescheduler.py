"""ByteScheduler: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training", SOSP'19."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, merge_small, one_per_tensor
from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.timing import Timing


@dataclass(frozen=True)
class ByteScheduler(Policy):
    """Parts by priority within a window of credit: the optimal schedule as parts and credit go to zero.

    The paper's defaults are a million elements of partition and four million of credit.
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
