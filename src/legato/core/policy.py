"""What a policy is: it writes plans. The policies of the literature are in `legato.core.policies`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

from legato.core.fusion import Buckets, one_per_tensor
from legato.core.part import Stage
from legato.core.plan import Plan
from legato.core.task import Tensor
from legato.core.workload import Timing
from legato.errors import InputError

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
    """Decides what starts next, beforehand: it writes a plan that executors then follow.

    A subclass needs a `name` and an `order`; everything else has a default. A policy runs on one rank only, and its
    plan travels to the others, so it may look at whatever it likes.
    """

    name: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]] = (Stage.SYNC,)
    """The operations every bucket goes through, in order."""
    stage_barrier: ClassVar[bool] = False
    """Whether a stage begins only when every bucket of the step has finished the one before."""
    step_barrier: ClassVar[bool] = False
    """Whether the next forward pass begins only when every task of the step is complete."""

    @property
    def partition_bytes(self) -> int | None:
        """Largest part, where nobody asks for another; None sends buckets whole."""
        return None

    @property
    def credit_bytes(self) -> int | None:
        """Bytes in flight at once, where nobody asks for another number; None is no limit."""
        return None

    def order(self, bucket: Bucket, stage: Stage) -> Order:
        """Where a bucket stands in the queue: the smallest starts first, equal ones in order of step and arrival."""
        raise NotImplementedError

    def buckets(self, tensors: Sequence[Tensor], timing: Timing | None) -> Buckets:  # noqa: ARG002
        """Which tensors travel together."""
        return one_per_tensor(tensors)

    def plan(
        self,
        tensors: Sequence[Tensor],
        *,
        partition_bytes: int | None = None,
        credit_bytes: int | None = None,
        timing: Timing | None = None,
        buckets: Buckets | None = None,
    ) -> Plan:
        """The plan for these tensors; None leaves a value to the policy."""
        chosen = self.buckets(tensors, timing) if buckets is None else buckets
        cut = self.partition_bytes if partition_bytes is None else partition_bytes
        return Plan(
            policy=self.describe(),
            stages=self.stages,
            buckets=chosen,
            ranks=self._ranks([_bucket(tensors, indices) for indices in chosen]),
            partition_bytes=(cut,) * len(chosen),
            credit_bytes=self.credit_bytes if credit_bytes is None else credit_bytes,
            stage_barrier=self.stage_barrier,
            step_barrier=self.step_barrier,
        )

    def describe(self) -> str:
        """The policy and its parameters in words, for people and logs."""
        if not is_dataclass(self):
            return self.name
        return f"{self.name}({', '.join(f'{each.name}={getattr(self, each.name)}' for each in fields(self))})"

    def _ranks(self, buckets: Sequence[Bucket]) -> tuple[tuple[int, ...], ...]:
        """Orders as whole numbers, dense and comparable across stages."""
        orders = [[self.order(bucket, stage) for bucket in buckets] for stage in self.stages]
        try:
            rank_of = {each: rank for rank, each in enumerate(sorted({each for stage in orders for each in stage}))}
        except TypeError:
            raise InputError(f"policy {self.name!r}: order() must return tuples of numbers") from None
        return tuple(tuple(rank_of[each] for each in stage) for stage in orders)


def _bucket(tensors: Sequence[Tensor], indices: tuple[int, ...]) -> Bucket:
    members = [tensors[index] for index in indices]
    return Bucket(indices, sum(tensor.num_bytes for tensor in members), min(tensor.priority for tensor in members))
