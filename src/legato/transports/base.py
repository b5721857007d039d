"""What a transport is: it moves parts, and knows nothing of when or why."""

from collections.abc import Sequence
from typing import Any, Protocol

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.scheduler import Finished, Sent
from legato.errors import MismatchError, PlanError
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


def check_tensors(said: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Raise on every rank unless all ranks declare the same tensors: `said` has those of each, as they travelled."""
    if all(tensors == said[0] for tensors in said):
        return
    if len({len(tensors) for tensors in said}) > 1:
        words = ", ".join(f"rank {rank} has {len(tensors)}" for rank, tensors in enumerate(said))
        raise MismatchError(f"the ranks have different numbers of tensors: {words}")
    place = next(place for place, each in enumerate(said[0]) if any(tensors[place] != each for tensors in said))
    one_each = [tensors[place] for tensors in said]
    words = "; ".join(
        f"rank {rank} says {each['name']!r} is {each['dtype']} {tuple(each['shape'])}"
        for rank, each in enumerate(one_each)
    )
    name = one_each[0]["name"]
    raise MismatchError(f"tensor {name!r} differs between ranks: {words}", tensor=name)


def check_plans(said: Sequence[tuple[str, int, int]]) -> None:
    """Raise on every rank unless all ranks follow the same plan from the same step, which none has begun.

    `said` has each rank's digest of the plan, its step, and the latest step that the rank has begun.
    """
    if len({(digest, from_step) for digest, from_step, _ in said}) > 1:
        plans = "; ".join(f"rank {rank} has {each[0]} from step {each[1]}" for rank, each in enumerate(said))
        raise MismatchError(f"the ranks have different plans: {plans}")
    for rank, (_, from_step, latest_step) in enumerate(said):
        if from_step <= latest_step:
            raise PlanError(f"rank {rank} has begun step {latest_step} already; choose a later one")
