"""Contributions before sums, by priority: legato's own policy for its engine."""

from dataclasses import dataclass
from typing import ClassVar

from legato.core.part import Stage
from legato.core.policies.bytescheduler import ByteScheduler
from legato.core.policy import Bucket, Order


@dataclass(frozen=True)
class PushFirst(ByteScheduler):
    """As bytescheduler, but no sum goes home while contributions are waiting to leave.

    A sum needs everybody's contribution. Where sums go first, a rank that is a little behind sends others what they
    need while all of them wait for what only it has, and the links of those ahead run dry. The most urgent sum loses
    nothing by it: every byte that goes before it has to go before the step is over.
    """

    name: ClassVar[str] = "pushfirst"
    stages: ClassVar[tuple[Stage, ...]] = (Stage.REDUCE_SCATTER, Stage.ALL_GATHER)

    def order(self, bucket: Bucket, stage: Stage) -> Order:
        return (stage, bucket.priority)
