"""Policies that send gradients in the order in which they appear: what frameworks do without a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, backward_order, fill, one_per_tensor
from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.workload import Timing


class Fifo(Policy):
    """Every tensor whole, in order of arrival, with the next forward waiting tensor by tensor (MXNet's engine)."""

    name = "fifo"

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return ()


@dataclass(frozen=True)
class WaitFree(Fifo):
    """Buckets leave during backward in the order they fill; the next forward waits for all of them.

    Zhang et al., "Poseidon", ATC'17; in the form of PyTorch's DDP, Li et al., VLDB'20.
    """

    name: ClassVar[str] = "wfbp"
    step_barrier: ClassVar[bool] = True

    bucket_bytes: int = 25 << 20
    """A bucket is closed when it reaches this."""
    first_bucket_bytes: int = 1 << 20
    """The first one sooner, so that communication starts early."""

    def buckets(self, tensors: Sequence[Tensor], timing: Timing | None) -> Buckets:  # noqa: ARG002
        return fill(tensors, self.bucket_bytes, min(self.first_bucket_bytes, self.bucket_bytes))


class MergedWaitFree(Fifo):
    """As wfbp, but a gradient waits for the next one exactly where waiting costs less than another start-up.

    Without timing nothing can be weighed, and every tensor travels alone. Shi et al., "MG-WFBP", INFOCOM'19.
    """

    name = "mgwfbp"
    step_barrier = True

    def buckets(self, tensors: Sequence[Tensor], timing: Timing | None) -> Buckets:
        return one_per_tensor(tensors) if timing is None else merge_while_cheap(tensors, timing)


def merge_while_cheap(tensors: Sequence[Tensor], timing: Timing) -> Buckets:
    """Walk down the backward pass with the time at which the link falls idle.

    The bucket that is open could leave at `begin`. If the next gradient is there before `begin` + α, one merged
    operation ends no later than two separate ones, so it is merged (the paper's condition for a merged layer).
    """
    buckets: list[tuple[int, ...]] = []
    bucket: list[int] = []
    size = 0
    ready = free = 0.0
    for index in backward_order(tensors):
        ready_before, ready = ready, ready + timing.backward_s[index]
        begin = max(free, ready_before)
        if bucket and ready >= begin + timing.startup_s:
            buckets.append(tuple(bucket))
            free = begin + timing.startup_s + size * timing.seconds_per_byte
            bucket, size = [], 0
        bucket.append(index)
        size += tensors[index].num_bytes
    return (*buckets, tuple(bucket)) if bucket else tuple(buckets)
