"""Buckets: the memory in which gradients travel.

    a large gradient     travels in its own memory, where that is one stretch of the right kind
    small ones           are copied into one flat stretch: | gradient 4 … | gradient 3 … | gradient 2 … |

What every rank has a gradient for is said in one more bucket, the presence: a number for each parameter, whose sum says
how many ranks had one. Only a rank that has none itself ever waits for it.
"""

from collections.abc import Sequence

import torch

from legato.core import Plan


class Buckets:
    """The memory of one plan; it stays for as long as the plan does."""

    def __init__(self, plan: Plan, shapes: Sequence[torch.Size], kinds: Sequence[torch.Tensor], num_ranks: int) -> None:
        """`kinds` are examples of what travels: their dtype and device."""
        self.plan = plan
        self._shapes = shapes
        self._kinds = kinds
        # What each rank gives is its share of the average: scaling costs nothing while copying, and a pass over the
        # sum later. A tensor without dimensions is what torch takes faster than a number.
        self._scale = torch.tensor(1 / num_ranks, dtype=torch.float64)
        self._bucket_of = {index: number for number, bucket in enumerate(plan.buckets) for index in bucket}
        self._unfilled = [len(bucket) for bucket in plan.buckets]
        self._flats: dict[int, torch.Tensor] = {}
        self._places: dict[int, torch.Tensor] = {}
        self._travelling: dict[int, torch.Tensor] = {}

    def put(self, index: int, wire: torch.Tensor | None) -> torch.Tensor:
        """Take a gradient, or nothing; the answer is where its average will be."""
        number = self._bucket_of[index]
        alone = len(self.plan.buckets[number]) == 1
        if alone and wire is not None and wire.is_contiguous():
            wire.mul_(self._scale)
            self._travelling[number] = wire.view(-1)
            return wire
        place = self._place(index, number)
        if alone:
            self._travelling[number] = self._flats[number]
        if wire is None:
            place.zero_()
        else:
            torch.mul(wire, self._scale, out=place)
        return place

    def filled(self, index: int) -> int | None:
        """A gradient has been put; the bucket's number where that was its last one."""
        number = self._bucket_of[index]
        self._unfilled[number] -= 1
        if self._unfilled[number]:
            return None
        self._unfilled[number] = len(self.plan.buckets[number])
        return number

    def memory(self, number: int) -> torch.Tensor:
        """What travels, once the bucket is filled."""
        return self._travelling.get(number, self._flats.get(number, torch.empty(0)))

    def _place(self, index: int, number: int) -> torch.Tensor:
        """Where a gradient travels that cannot in its own memory; made when one first has to."""
        if number not in self._flats:
            bucket = self.plan.buckets[number]
            sizes = [self._shapes[each].numel() for each in bucket]
            kind = self._kinds[bucket[0]]
            flat = self._flats[number] = torch.zeros(sum(sizes), dtype=kind.dtype, device=kind.device)
            for each, piece in zip(bucket, flat.split(sizes), strict=True):
                self._places[each] = piece.view(self._shapes[each])
        return self._places[index]
