"""Progress: how far each rank was with each tensor when an epoch ended, and what that leaves to do. Free of I/O.

A step of a tensor is complete on a rank when its average is there. It is complete anywhere only after every rank has
contributed to it, and a rank contributes to a step only when the last one is complete there. So ranks are at most one
step apart in each tensor, those behind have their own contribution still, and what a rank has received last is what
those behind lack:

    complete on some ranks   one of them gives its average to the others: the same bits everywhere
    complete on none         the survivors sum it again among themselves
    not begun by some        those that have contributed do so again, and wait for the others as always
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from legato.errors import ProtocolError
from legato.records import build


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one rank, by tensor."""

    begun: tuple[int, ...]
    """Steps to which it has contributed."""
    completed: tuple[int, ...]
    """Steps whose averages it has."""
    empty: tuple[bool, ...]
    """Whether nobody had a gradient in the last completed step."""
    order: tuple[int, ...] | None
    """The order in which tensors are used first, where it is known."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Progress":
        return build(cls, json.loads(text))


@dataclass(frozen=True, slots=True)
class Gift:
    """A completed step that some ranks lack."""

    place: int
    giver: int
    """The lowest rank that has it."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Where all ranks are once gifts have been given."""

    completed: tuple[int, ...]
    empty: tuple[bool, ...]
    gifts: tuple[Gift, ...]
    order: tuple[int, ...] | None


def settle(by_rank: Sequence[Progress]) -> Settlement:
    """What all ranks conclude from what all have told; ProtocolError where ranks cannot have come so far."""
    completed, empty, gifts = [], [], []
    for place in range(len(by_rank[0].completed)):
        newest = max(each.completed[place] for each in by_rank)
        giver = next(rank for rank, each in enumerate(by_rank) if each.completed[place] == newest)
        behind = [rank for rank, each in enumerate(by_rank) if each.completed[place] < newest]
        for rank in behind:
            if by_rank[rank].completed[place] < newest - 1 or by_rank[rank].begun[place] < newest:
                raise ProtocolError(
                    f"rank {rank} has completed {by_rank[rank].completed[place]} steps of tensor {place} and rank "
                    f"{giver} {newest}: they cannot go on together",
                    rank=rank,
                )
        completed.append(newest)
        empty.append(by_rank[giver].empty[place])
        if behind:
            gifts.append(Gift(place, giver))
    order = next((each.order for each in by_rank if each.order is not None), None)
    return Settlement(tuple(completed), tuple(empty), tuple(gifts), order)
