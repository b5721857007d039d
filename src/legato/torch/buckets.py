"""Buckets: flat memory in which the gradients of a plan travel together.

    bucket   | gradient 4 … | flag, padding | gradient 3 … | flag, padding | …

Each gradient is followed by a flag that is 1 where a rank had one: the sum of the flags says whether anybody had, at
the price of an element instead of an operation. The padding lets any run of whole gradients be cut in pieces that
all ranks share equally.
"""

from collections.abc import Sequence

import torch

from legato.core import Plan


class Compartment:
    """Where one gradient travels."""

    def __init__(self, flat: torch.Tensor, shape: torch.Size) -> None:
        self._flat = flat
        self.values = flat[: shape.numel()].view(shape)
        self._flag = flat[shape.numel()]

    def fill(self, gradient: torch.Tensor, scale: torch.Tensor) -> None:
        """Take this rank's share of the average: scaling costs nothing while copying, and a pass over the sum later.

        The scale is a tensor without dimensions, which torch takes three times faster than a number.
        """
        torch.mul(gradient, scale, out=self.values)
        self._flag.fill_(1)

    def clear(self) -> None:
        """This rank has no gradient."""
        self._flat.zero_()

    def anybody(self) -> bool:
        """Whether a rank had a gradient, once the sum is here. Waits for the device where there is one."""
        return bool(self._flag.item() > 0)


def padded_items(num_items: int, num_ranks: int) -> int:
    """Elements of a compartment: the gradient, its flag, and what makes it a multiple of the ranks."""
    return -(-(num_items + 1) // num_ranks) * num_ranks


class Buckets:
    """The memory of one plan; it stays for as long as the plan does."""

    def __init__(self, plan: Plan, shapes: Sequence[torch.Size], kinds: Sequence[torch.Tensor], num_ranks: int) -> None:
        """`kinds` are examples of what travels: their dtype and device."""
        self.plan = plan
        self.flats: list[torch.Tensor] = []
        self.bucket_of = [0] * len(shapes)
        places: list[Compartment | None] = [None] * len(shapes)
        for number, bucket in enumerate(plan.buckets):
            sizes = [padded_items(shapes[index].numel(), num_ranks) for index in bucket]
            flat = torch.zeros(sum(sizes), dtype=kinds[bucket[0]].dtype, device=kinds[bucket[0]].device)
            self.flats.append(flat)
            for index, piece in zip(bucket, flat.split(sizes), strict=True):
                self.bucket_of[index] = number
                places[index] = Compartment(piece, shapes[index])
        self.compartments = [place for place in places if place is not None]
        self._sizes = [len(bucket) for bucket in plan.buckets]
        self._unfilled = list(self._sizes)

    def filled(self, index: int) -> int | None:
        """A gradient is in its compartment; the bucket's number where that was the last one."""
        bucket = self.bucket_of[index]
        self._unfilled[bucket] -= 1
        if self._unfilled[bucket]:
            return None
        self._unfilled[bucket] = self._sizes[bucket]
        return bucket
