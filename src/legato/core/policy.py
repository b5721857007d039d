"""What a policy is. The policies of the literature are in `legato.core.policies`, a file each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from legato.core.fusion import one_per_tensor
from legato.core.part import Stage
from legato.core.plan import Plan
from legato.core.task import Tensor
from legato.core.timing import Timing

Order = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a policy sees when it ranks a bucket."""

    tensors: tuple[int, ...]
    """Indices of the tensors that travel together."""
    num_bytes: int
    """Their bytes, end to end."""
    priority: int
    """The most urgent of their priorities: their deadline."""


class Policy:
    """Decides what is started next.

    A policy says three things: how buckets rank (`order`), through which stages they go and what they wait for (the
    class variables), and which plan suits given tensors (`plan`). Only `name` and `order` have no default. Policies
    hold no state of a run, so one object serves every rank and every step.
    """

    name: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]] = (Stage.SYNC,)
    """The operations every bucket goes through, in order."""
    stage_barrier: ClassVar[bool] = False
    """Whether a stage begins only when every bucket of the step has finished the one before."""
    step_barrier: ClassVar[bool] = False
    """Whether the next forward pass begins only when every task of the step is complete."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:
        """The rank of a ready bucket; the smallest starts first, equal ones in order of step and arrival."""
        raise NotImplementedError

    def plan(
        self,
        tensors: Sequence[Tensor],
        *,
        partition_bytes: int | None = None,
        credit_bytes: int | None = None,
        timing: Timing | None = None,  # noqa: ARG002 - for policies that look at time
    ) -> Plan:
        """The plan for these tensors; None leaves a value to the policy."""
        return Plan(
            policy=self,
            buckets=one_per_tensor(tensors),
            partition_bytes=partition_bytes,
            credit_bytes=credit_bytes,
        )

    def describe(self) -> str:
        """The policy and its parameters in words: equal on two ranks exactly when both decide alike."""
        return self.name
