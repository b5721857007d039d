"""Measures of averages over a process group, taken between the halves of a sum.

After the reduce-scatter each rank has its share of every part. It measures the stretch of each tensor in it, and when
the last part of a round has been scattered all ranks tell each other what they have found:

    plan's group     RS2 RS1 AG2 RS0 ────────────► AG1 AG0           in the sequence of the plan
    shares           │2│ │1│     │0│ measured                        on the stream that has summed them
    group of its own                 all-gather ─► measures          one a round, so its order is that of rounds

Where a sum is one operation there is nothing to gain: whoever has the norm then has all averages.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from legato._native import measure
from legato.core import Part, Plan, Stage, Tensor
from legato.exchange.measure import Measure, total
from legato.torch.sync.process_group import ProcessGroup
from legato.transports.c10d.collectives import all_gather, share_of
from legato.transports.c10d.transport import translated


class _Stretch(NamedTuple):
    """Of one tensor, in one rank's share of one part."""

    first: int
    """Item of the tensor."""
    length: int
    rank: int
    """Whose share it is in."""
    place: int
    """Its measure's in what that rank tells."""


class Shares:
    """Who has what of each tensor between the halves of a plan, and in which order ranks tell of it."""

    def __init__(self, plan: Plan, tensors: Sequence[Tensor], *, num_tensors: int, num_ranks: int, rank: int) -> None:
        """The first `num_tensors` are measured."""
        self.num_parts = 0
        """That this rank takes part in, in a round."""
        self.stretches: list[list[_Stretch]] = [[] for _ in range(num_tensors)]
        """Of each tensor, in the order of its items."""
        self.mine: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """(place, length) of each stretch of this rank's share of a part, by bucket and offset."""
        places = [0] * num_ranks
        for number, (bucket, ranges) in enumerate(zip(plan.buckets, plan.parts(tensors), strict=True)):
            if max(bucket) >= num_tensors:
                continue
            self.num_parts += len(ranges)
            item_bytes = tensors[bucket[0]].item_bytes
            ends = [0]
            for index in bucket:
                ends.append(ends[-1] + tensors[index].num_bytes // item_bytes)
            for offset, length in ranges:
                begin, num_items = offset // item_bytes, length // item_bytes
                mine = self.mine[number, offset] = []
                for each in range(num_ranks):
                    share = share_of(num_items, num_ranks, each)
                    for index, (first, last) in zip(bucket, pairwise(ends), strict=True):
                        low, high = max(first, begin + share.start), min(last, begin + share.stop)
                        if low >= high:
                            continue
                        self.stretches[index].append(_Stretch(low - first, high - low, each, places[each]))
                        if each == rank:
                            mine.append((places[each], high - low))
                        places[each] += 1
        self.num_told = max(places, default=0)
        """Measures that a rank tells in a round, the same number on each."""


class _Round:
    """What is known of one round."""

    def __init__(self, shares: Shares, num_ranks: int, *, pinned: bool) -> None:
        self.shares = shares
        self.num_left = shares.num_parts
        self.mine = torch.zeros(shares.num_told, 2, dtype=torch.float64, pin_memory=pinned)
        self.all = torch.zeros(num_ranks * shares.num_told, 2, dtype=torch.float64)
        self.work: Any = None

    @cached_property
    def told(self) -> list[list[Measure]]:
        """By rank and place, when the work is over."""
        rows = self.all.view(-1, self.shares.num_told, 2).tolist()
        return [[Measure(*each) for each in row] for row in rows]


class ShareMeasures:
    """Measures shares, and gathers what all ranks have measured. Every rank has one, for the same rounds."""

    def __init__(self, group: ProcessGroup, timeout_s: float, *, on_cuda: bool) -> None:
        """The group is this object's own, of memory on the host."""
        self._group = group
        self._timeout_s = timeout_s
        self._on_cuda = on_cuda
        self._shares: Shares | None = None
        self._rounds: dict[int, _Round] = {}

    def follow(self, shares: Shares | None) -> None:
        """From the next round on; None measures nothing."""
        self._shares = shares

    def begin(self, number: int) -> bool:
        """A round begins; whether it is measured. Updates of the one before may still need its measures."""
        self._rounds = {each: kept for each, kept in self._rounds.items() if each >= number - 1}
        if self._shares is not None:
            self._rounds[number] = _Round(self._shares, self._group.size, pinned=self._on_cuda)
        return self._shares is not None

    def scattered(self, part: Part, share: torch.Tensor) -> None:
        """A part's share is in its place, on the current stream."""
        known = self._rounds[part.step]
        first = 0
        for place, length in known.shares.mine[part.bucket, part.offset]:
            known.mine[place].copy_(_measured(share[first : first + length]), non_blocking=True)
            first += length

    def finished(self, part: Part) -> bool:
        """A part has finished a stage; whether this rank now tells all it knows of the round, because it was the last.

        Called in any order of parts, but of all ranks' rounds in the same: an all-gather leaves in each.
        """
        known = self._rounds.get(part.step)
        if (
            known is None
            or part.stage is not Stage.REDUCE_SCATTER
            or (part.bucket, part.offset) not in known.shares.mine
        ):
            return False
        known.num_left -= 1
        if known.num_left:
            return False
        with translated(self._group.rank, lambda: f"telling the measures of step {part.step}"):
            known.work = all_gather(known.all, known.mine, self._group.handle, async_op=True)
        return True

    def is_told(self, number: int) -> bool:
        """Whether this rank has told what it knows of a round: then `of` waits for the others only."""
        return self._rounds[number].work is not None

    def of(self, number: int, index: int) -> Measure:
        """The measure of one tensor's average in a round."""
        known = self._rounds[number]
        with translated(self._group.rank, lambda: f"gathering the measures of step {number}"):
            known.work.wait(timedelta(seconds=self._timeout_s))
        return total(known.told[each.rank][each.place] for each in known.shares.stretches[index])

    def here(self, number: int, index: int, average: torch.Tensor) -> Measure:
        """The same of an average that is here, to the bit."""
        items = average.detach().reshape(-1)
        stretches = self._rounds[number].shares.stretches[index]
        return total(Measure(*_measured(items[each.first : each.first + each.length]).tolist()) for each in stretches)

    def close(self, timeout_s: float) -> None:
        """End the group; an operation that nobody waits for must be over before."""
        works = [known.work for known in self._rounds.values() if known.work is not None]
        for last in works[-1:]:
            with suppress(RuntimeError):
                last.wait(timedelta(seconds=timeout_s))
        self._group.remove()


def _measured(items: torch.Tensor) -> torch.Tensor:
    """The sum of squares and the largest magnitude of a stretch, in float64, on its device."""
    if items.is_cuda:
        norms = [torch.linalg.vector_norm(items, order, dtype=torch.float64) for order in (2, math.inf)]
        return torch.stack([norms[0].square(), norms[1]])
    dtype = str(items.dtype).removeprefix("torch.")
    return torch.tensor(measure(dtype, items.view(torch.uint8).numpy()), dtype=torch.float64)
