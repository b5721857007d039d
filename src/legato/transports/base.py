"""What a transport is: it moves parts, and knows nothing of when or why."""

from collections.abc import Sequence
from typing import Protocol

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.scheduler import Finished, Sent
from legato.errors import PlanError
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration


class Transport(Protocol):
    """One rank's way to the others, for a scheduler that says which part starts when.

    The life of a bucket, which is what a plan makes of one tensor or several:

        declare(tensors), set_plan(plan, 0)     once, on every rank
        offer(step, bucket, memory)             its bytes are ready: end to end, in the order of the plan's bucket
        start(part) ... start(part)             as the scheduler decides, in any order
        events() -> [Sent(part), ...]           when it has been handed to the network, where the transport can tell
        events() -> [Finished(part), ...]       when every rank has started the part and the result is in place

    `start` and `offer` return at once and may be called from any thread; `events` belongs to one thread. Errors that
    end the job are raised by all of them. Every transport passes `legato.testing.transport_contract`.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def stages(self) -> frozenset[Stage]:
        """What it can do with a part; a plan whose policy needs more is refused."""

    @property
    def reports_sent(self) -> bool:
        """Whether a part is `Sent` before it is `Finished`. Where it is not, credit comes back with the end of a part,
        and ranks that choose by themselves can wait for each other: give them plans with a `sequence`."""

    def declare(self, tensors: Sequence[Declaration]) -> None:
        """Agree on tensors with all ranks; their order gives the indices that plans use. Later calls append."""

    def set_plan(self, plan: Plan, from_step: int) -> None:
        """Follow a plan from a step on. Every rank calls it with the same plan; all follow it, or none."""

    def offer(self, step: int, bucket: int, source: Buffer, destination: Buffer, *, reduction: str = "sum") -> None:
        """Lend the memory of a bucket until all its parts have finished; both may be the same (in place)."""

    def start(self, part: Part) -> None:
        """Begin to move a part of an offered bucket."""

    def events(self, timeout_s: float) -> list[Sent | Finished]:
        """What has become of started parts since the last call; waits for the first, [] when the time ran out."""

    def close(self) -> None:
        """Leave. Can be called twice."""


def check_stages(transport: Transport, plan: Plan) -> None:
    """Refuse a plan that needs what the transport cannot do."""
    missing = [stage.name for stage in plan.stages if stage not in transport.stages]
    if missing:
        able = ", ".join(stage.name for stage in sorted(transport.stages))
        raise PlanError(
            f"plan: policy {plan.policy} needs {', '.join(missing)}, this transport does {able}; choose another"
        )


def bucket_declaration(tensors: Sequence[Declaration]) -> Declaration:
    """What the tensors of one bucket are together: one of them, or a flat run of all their elements."""
    if len(tensors) == 1:
        return tensors[0]
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:
        raise PlanError(f"plan: a bucket of {', '.join(sorted(dtypes))}; the tensors of one bucket have one dtype")
    if any(tensor.compression is not None for tensor in tensors):
        raise PlanError("plan: a bucket of several tensors that are compressed; give each its own bucket")
    first, last = tensors[0], tensors[-1]
    elements = sum(tensor.num_bytes // tensor.item_bytes for tensor in tensors)
    return Declaration(
        name=f"legato/bucket/{first.name}..{last.name}/{len(tensors)}/{elements}",
        shape=(elements,),
        dtype=first.dtype,
    )
