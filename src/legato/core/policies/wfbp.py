"""Wait-free backpropagation: Zhang et al., "Poseidon", ATC'17; in the form of PyTorch's DDP, Li et al., VLDB'20."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, fill
from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.timing import Timing

MIB = 1 << 20


@dataclass(frozen=True)
class WaitFree(Policy):
    """Buckets leave during backward in the order they fill; the next forward waits for all of them."""

    name: ClassVar[str] = "wfbp"
    step_barrier: ClassVar[bool] = True

    bucket_bytes: int = 25 * MIB
    """A bucket is closed when it reaches this."""
    first_bucket_bytes: int = MIB
    """The first one sooner, so that communication starts early."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return ()

    def buckets(self, tensors: Sequence[Tensor], timing: Timing | None) -> Buckets:  # noqa: ARG002
        return fill(tensors, self.bucket_bytes, min(self.first_bucket_bytes, self.bucket_bytes))
