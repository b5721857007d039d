"""First in, first out: what a framework without a scheduler does."""

from legato.core.part import Stage
from legato.core.policy import Bucket, Order, Policy


class Fifo(Policy):
    """Every tensor whole, in order of arrival, with the next forward waiting tensor by tensor (MXNet's engine)."""

    name = "fifo"

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return ()
