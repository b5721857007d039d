"""The native transport: a scheduler says which part starts when, the engine moves it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from legato import _native
from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.errors import InputError, PlanError
from legato.transports.base import bucket_declaration, check_stages
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration
from legato.transports.group import NativeGroup
from legato.transports.handle import Kept, TaskHandle


@dataclass(slots=True, eq=False)
class _Offer:
    """A bucket's memory, lent to the engine."""

    bucket: int
    tensor: Declaration
    handle: TaskHandle[None]
    num_finished: int = 0


class NativeTransport:
    """Drives a group part by part. The engine's own credit does not apply: the scheduler above has one."""

    stages = frozenset({Stage.SYNC})

    def __init__(self, group: NativeGroup) -> None:
        self._group = group
        self._session = group.session
        self._tensors: list[Declaration] = []
        self._plans: list[tuple[int, list[Declaration]]] = []
        self._offers: dict[tuple[int, int], _Offer] = {}
        """By step and bucket."""
        self._offers_by_number: dict[tuple[int, int], _Offer] = {}
        """By step and the engine's number of the tensor."""

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    def declare(self, tensors: Sequence[Declaration]) -> None:
        self._group.declare([_carrier(tensor) for tensor in tensors])
        self._tensors += tensors

    def set_plan(self, plan: Plan, from_step: int) -> None:
        check_stages(self, plan)
        buckets = [bucket_declaration([self._tensors[index] for index in bucket]) for bucket in plan.buckets]
        self._group.declare([_carrier(bucket) for bucket in buckets])
        self._group.set_plan(plan, from_step, everyone=True)
        earlier = [entry for entry in self._plans if entry[0] < from_step]
        # A step and the one before it may be under way together, not more.
        self._plans = [*earlier[-2:], (from_step, buckets)]

    def offer(
        self,
        step: int,
        bucket: int,
        source: Buffer,
        destination: Buffer,
        *,
        priority: int = 0,
        reduction: str = "sum",
    ) -> None:
        tensor = self._bucket_at(step, bucket)
        for buffer in (source, destination):
            if buffer.num_bytes != tensor.num_bytes:
                raise InputError(f"bucket {bucket} has {tensor.num_bytes} bytes, but {buffer.num_bytes} are offered")
        if not tensor.num_bytes:
            source = destination = Buffer.of(bytearray(1), tensor.name)
        handle = self._group.channel(_carrier(tensor)).launch(
            source=source.address,
            destination=destination.address,
            num_bytes=source.num_bytes,
            result=Kept((source, destination), None),
            reduction=reduction,
            priority=priority,
            step=step,
            manual=True,
        )
        offer = _Offer(bucket, tensor, handle)
        self._offers[step, bucket] = offer
        self._offers_by_number[step, self._number(tensor)] = offer

    def start(self, part: Part) -> None:
        offer = self._offers.get((part.step, part.bucket))
        if offer is None or part.stage is not Stage.SYNC:
            raise InputError(f"{part} cannot start: its bucket has not been offered")

        def begin(task: _native.Handle) -> None:
            parts = self._session.player.layout(self._number(offer.tensor), part.step)
            index = bisect_left(parts, (part.offset,))
            if index == len(parts) or parts[index].offset != part.offset:
                raise PlanError(f"{part} is not one of the plan's parts")
            self._session.engine.start(task, index)

        offer.handle.when_started(begin)

    def finished(self, timeout_s: float) -> list[Part]:
        self._group.check_open()
        finished = self._session.engine.finished_parts(timeout_s)
        failure = self._session.engine.failure
        if not finished and failure is not None:
            raise self._session.explain(failure)
        return [self._finish(*entry) for entry in finished]

    def close(self) -> None:
        self._group.close()

    def _finish(self, number: int, step: int, index: int) -> Part:
        offer = self._offers_by_number[step, number]
        parts = self._session.player.layout(number, step)
        offer.num_finished += 1
        if offer.num_finished == len(parts):
            # The engine tells of the last part a moment before its task is over; the next step needs it over.
            offer.handle.wait()
            del self._offers_by_number[step, number], self._offers[step, offer.bucket]
        length = parts[index].length if offer.tensor.num_bytes else 0
        return Part(step, offer.bucket, Stage.SYNC, parts[index].offset, length)

    def _bucket_at(self, step: int, bucket: int) -> Declaration:
        for from_step, buckets in reversed(self._plans):
            if from_step <= step:
                return buckets[bucket]
        raise PlanError(f"step {step} has no plan; call set_plan first")

    def _number(self, tensor: Declaration) -> int:
        return self._group.number(_carrier(tensor).name)


def _carrier(tensor: Declaration) -> Declaration:
    """What travels for a tensor: itself, or one byte for an empty one, so that it finishes like any other."""
    if tensor.num_bytes:
        return tensor
    return Declaration(name=f"legato/empty/{tensor.name}", shape=(1,), dtype="uint8")
