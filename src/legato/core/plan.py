"""Plans: what every rank agrees on before a step begins, as plain data that any executor can follow.

A policy writes a plan; from then on the policy is not needed. A plan travels between ranks as JSON, and the same text
can be kept in a file.

    policy ── plan(tensors) ──► Plan ──► Scheduler   the simulator, and training over process groups
                                    └──► engine      training over the native transport
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from legato.core.fusion import Buckets
from legato.core.part import Stage, split
from legato.core.task import Tensor
from legato.errors import PlanError
from legato.records import fit

Turn = tuple[Stage, int]
"""(stage, bucket): one part of that bucket may start."""
Ranges = tuple[tuple[int, int], ...]
"""(offset, length) of each part of a bucket."""

ONE_STAGE = (Stage.SYNC,)
TWO_STAGES = (Stage.REDUCE_SCATTER, Stage.ALL_GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything an executor needs. Every rank holds the same plan; it changes only at an agreed step."""

    policy: str = field(default="", compare=False)
    """Who wrote it, in words for people and logs. Nothing compares or interprets them."""
    stages: tuple[Stage, ...] = ONE_STAGE
    """The operations that every bucket goes through, in order: SYNC, or REDUCE_SCATTER and ALL_GATHER."""
    buckets: Buckets
    """Which tensors travel together: every tensor in exactly one bucket."""
    ranks: tuple[tuple[int, ...], ...]
    """For each stage, the rank of each bucket. The smallest starts first, whatever its stage; equal ranks start in
    order of step and arrival."""
    partition_bytes: tuple[int | None, ...]
    """For each bucket, its largest part; None sends it whole."""
    flat: bool = True
    """Whether a bucket is one stretch of memory, which parts cut anywhere. Otherwise parts end where tensors end, as in
    the engine, which copies nothing together."""
    credit_bytes: int | None = None
    """Bytes that may be in flight at once; None is no limit.

    A part is in flight until the transport has handed it to the network, or, where a transport cannot tell, until it
    has finished (docs/decisions/001).
    """
    stage_barrier: bool = False
    """Whether a stage begins only when every bucket of the step has finished the one before."""
    step_barrier: bool = False
    """Whether the next forward pass begins only when every task of the step is complete."""
    sequence: tuple[Turn, ...] | None = None
    """The order in which every rank starts the parts of a step: the n-th mention of a bucket's stage is its n-th part.

    For transports that match operations by order, where ranks that decide alone hang. None: what is ready and ranks
    first, on each rank by itself.
    """

    def __post_init__(self) -> None:
        if self.stages not in (ONE_STAGE, TWO_STAGES):
            _refuse(f"stages are {_names(self.stages)}; accepted: {_names(ONE_STAGE)}, or {_names(TWO_STAGES)}")
        listed = [index for bucket in self.buckets for index in bucket]
        if not all(self.buckets) or len(set(listed)) < len(listed) or min(listed, default=0) < 0:
            _refuse("a bucket is empty, or holds a tensor that another holds too")
        if [len(ranks) for ranks in self.ranks] != [len(self.buckets)] * len(self.stages):
            _refuse(f"ranks must be {len(self.stages)} × {len(self.buckets)} numbers, one per stage and bucket")
        if len(self.partition_bytes) != len(self.buckets):
            _refuse(f"partition_bytes has {len(self.partition_bytes)} values for {len(self.buckets)} buckets")
        for name, values in (("partition_bytes", self.partition_bytes), ("credit_bytes", (self.credit_bytes,))):
            least = min((value for value in values if value is not None), default=1)
            if least < 1:
                _refuse(f"{name}={least} must be at least 1, or None for no limit")
        for stage, bucket in self.sequence or ():
            if stage not in self.stages or not 0 <= bucket < len(self.buckets):
                _refuse(f"the sequence names {stage.name} of bucket {bucket}, which the plan does not have")

    @property
    def ranked_buckets(self) -> list[tuple[list[int], int, int]]:
        """Each bucket with the rank of its contribution and that of its sum."""
        return [*zip(map(list, self.buckets), self.ranks[0], self.ranks[-1], strict=True)]

    @property
    def largest_partition_bytes(self) -> int | None:
        """The largest of all partitions; None where a bucket travels whole."""
        given = [each for each in self.partition_bytes if each is not None]
        return max(given) if given and len(given) == len(self.partition_bytes) else None

    @property
    def bucket_of(self) -> dict[int, int]:
        """The bucket of each tensor."""
        return {tensor: index for index, bucket in enumerate(self.buckets) for tensor in bucket}

    def first_halves_first(self) -> "Plan":
        """The same orders, but a second half starts only when no first half can: for norms, which need all of those."""
        if len(self.stages) == 1:
            return self
        first, second = self.ranks
        behind = max(first, default=0) + 1
        return replace(self, ranks=(first, tuple(behind + rank for rank in second)))

    def parts(self, tensors: Sequence[Tensor]) -> tuple[Ranges, ...]:
        """How each bucket is cut, at boundaries of its elements."""
        cut = _cut_as_one if self.flat else _cut_each
        return tuple(
            cut([tensors[index] for index in bucket], partition_bytes)
            for bucket, partition_bytes in zip(self.buckets, self.partition_bytes, strict=True)
        )

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raise unless the plan is one for these tensors."""
        listed = sorted(index for bucket in self.buckets for index in bucket)
        if listed != list(range(len(listed))):
            _refuse(f"the buckets must hold each of {len(tensors)} tensors once, they hold {listed}")
        if len(listed) != len(tensors):
            _refuse(f"it is for {len(listed)} tensors, but there are {len(tensors)}")
        if self.sequence is not None:
            self._check_sequence(self.sequence, self.parts(tensors))

    def _check_sequence(self, sequence: Sequence[Turn], parts: Sequence[Ranges]) -> None:
        """Raise unless every part has its turn once, after all that it waits for."""
        due = {(stage, index): len(ranges) for stage in self.stages for index, ranges in enumerate(parts)}
        if Counter(sequence) != due:
            _refuse(f"the sequence must hold each of the {sum(due.values())} parts of a step once")
        last = {turn: place for place, turn in enumerate(sequence)}
        for place, (stage, index) in enumerate(sequence):
            awaited = range(len(parts)) if self.stage_barrier else (index,)
            if any(last[earlier, each] > place for earlier in self.stages if earlier < stage for each in awaited):
                _refuse(f"in the sequence, {stage.name} of bucket {index} precedes what it waits for")

    def to_json(self) -> str:
        return json.dumps({"policy": self.policy, **self._values()}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read what `to_json` wrote; anything else is refused with what is wrong and what is accepted."""
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"not a valid plan: no JSON, line {error.lineno}: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # a number too long, lists too deep
            raise PlanError(f"not a valid plan: {error!s:.80}") from None
        return cls(**_read(document))

    def digest(self) -> str:
        """A short hash of what executors follow; ranks compare it before they do."""
        return hashlib.sha256(json.dumps(self._values(), sort_keys=True).encode()).hexdigest()[:16]

    def _values(self) -> dict[str, object]:
        return {
            "stages": [stage.name for stage in self.stages],
            "buckets": self.buckets,
            "ranks": self.ranks,
            "partition_bytes": self.partition_bytes,
            "flat": self.flat,
            "credit_bytes": self.credit_bytes,
            "stage_barrier": self.stage_barrier,
            "step_barrier": self.step_barrier,
            "sequence": None if self.sequence is None else [[stage.name, bucket] for stage, bucket in self.sequence],
        }


def _cut_as_one(tensors: Sequence[Tensor], partition_bytes: int | None) -> Ranges:
    num_bytes = sum(tensor.num_bytes for tensor in tensors)
    return split(num_bytes, partition_bytes, max(tensor.item_bytes for tensor in tensors))


def _cut_each(tensors: Sequence[Tensor], partition_bytes: int | None) -> Ranges:
    ranges: list[tuple[int, int]] = []
    start = 0
    for tensor in tensors:
        if tensor.num_bytes:
            pieces = split(tensor.num_bytes, partition_bytes, tensor.item_bytes)
            ranges += [(start + offset, length) for offset, length in pieces]
        start += tensor.num_bytes
    return tuple(ranges) or ((0, 0),)


def _refuse(what: str) -> None:
    raise PlanError(f"not a valid plan: {what}")


def _names(stages: Sequence[Stage]) -> str:
    return ", ".join(stage.name for stage in stages) or "none"


_ACCEPTED = {
    "policy": "words",
    "stages": '["SYNC"] or ["REDUCE_SCATTER", "ALL_GATHER"]',
    "buckets": "lists of the tensors' numbers",
    "ranks": "a list for each stage, a whole number for each bucket",
    "partition_bytes": "a whole number or null for each bucket",
    "flat": "true or false",
    "credit_bytes": "a whole number or null",
    "stage_barrier": "true or false",
    "step_barrier": "true or false",
    "sequence": "null, or a list of [stage, bucket]",
}


def _read(document: object) -> dict[str, Any]:
    if not isinstance(document, dict) or set(document) != set(_ACCEPTED):
        raise PlanError(f"not a valid plan: it must have exactly the fields {', '.join(_ACCEPTED)}")
    hints, values = get_type_hints(Plan), {}
    for name, accepted in _ACCEPTED.items():
        try:
            values[name] = fit(hints[name], document[name])
        except (TypeError, ValueError, KeyError):
            raise PlanError(f"not a valid plan: {name} is {document[name]!r:.60}; accepted: {accepted}") from None
    return values
