"""P3, priority-based parameter propagation: Jayarajan et al., SysML'19."""

from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy


class P3(Policy):
    """Small slices by priority, handed to the network one after the other."""

    name = "p3"
    partition_bytes = 160 * 1024
    credit_bytes = 1
    """Less than any slice, so that one is in flight at a time."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.priority,)
