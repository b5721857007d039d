"""Buckets: the memory in which gradients travel.

    a large gradient     travels in its own memory, where that is one stretch of the right kind
    small ones           are copied into one flat stretch: | gradient 4 … | gradient 3 … | gradient 2 … |

What every rank has a gradient for is said in one more bucket, the presence: a number for each parameter, whose sum says
how many ranks had one. Only a rank that has none itself ever waits for it.
"""

from collections.abc import Sequence

import torch

from legato.core.fusion import Buckets as Members


class Buckets:
    """The memory of one plan's buckets; it stays for as long as the plan does."""

    def __init__(
        self,
        members: Members,
        shapes: Sequence[torch.Size],
        kinds: Sequence[torch.Tensor],
        num_ranks: int,
        *,
        grain: int = 1,
    ) -> None:
        """`kinds` are examples of what travels: their dtype and device. What travels is a multiple of `grain` items."""
        self.members = members
        self._grain = grain
        self._shapes = shapes
        self._kinds = kinds
        # A tensor without dimensions is what torch takes faster than a number.
        self._share = torch.tensor(1 / num_ranks, dtype=torch.float64)
        self._bucket_of = {index: number for number, bucket in enumerate(members) for index in bucket}
        self._flats: dict[int, torch.Tensor] = {}
        self._places: dict[int, torch.Tensor] = {}
        self._given: list[dict[int, torch.Tensor | None]] = [{} for _ in members]

    def companions(self, index: int) -> Sequence[int]:
        """Whose gradients travel with this one, itself among them."""
        return self.members[self._bucket_of[index]]

    def put(self, index: int, wire: torch.Tensor | None) -> torch.Tensor:
        """Take a gradient, or nothing; the answer is where its average will be.

        It is only looked at when its bucket is filled: many at once cost little more than one.
        """
        number = self._bucket_of[index]
        self._given[number][index] = wire
        if wire is not None and len(self.members[number]) == 1 and self._travels_as_it_is(wire):
            return wire
        return self._place(index, number)

    def filled(self, index: int) -> int | None:
        """The number of the bucket, where all its gradients have been put."""
        number = self._bucket_of[index]
        return number if self.is_filled(number) else None

    def is_filled(self, number: int) -> bool:
        return len(self._given[number]) == len(self.members[number])

    def reduction(self, number: int) -> str:
        """How what `pack` gives becomes the average.

        On processors whoever lands a sum divides it, on a thread that holds up no backward pass. In float16, where a
        sum of many may be infinite, each rank gives its share of the average instead, and on an accelerator, whose
        kernel holds up nobody.
        """
        return "sum" if self._gives_shares(number) else "average"

    def pack(self, number: int) -> torch.Tensor:
        """What travels of a filled bucket, which then is an empty one."""
        flat = self._flat(number)
        return flat.mul_(self._share) if self._gives_shares(number) else flat

    def _gives_shares(self, number: int) -> bool:
        kind = self._kinds[self.members[number][0]]
        return kind.is_cuda or kind.dtype is torch.float16

    def _flat(self, number: int) -> torch.Tensor:
        given, self._given[number] = self._given[number], {}
        if len(given) == 1:
            [wire] = given.values()
            if wire is not None and self._travels_as_it_is(wire):
                return wire.view(-1)
        absent = [self._places[index] for index, wire in given.items() if wire is None]
        present = [(self._places[index], wire) for index, wire in given.items() if wire is not None]
        if absent:
            torch._foreach_zero_(absent)
        if present:
            torch._foreach_copy_([place for place, _ in present], [wire for _, wire in present])
        return self._flats[number]

    def _travels_as_it_is(self, wire: torch.Tensor) -> bool:
        return wire.is_contiguous() and wire.numel() % self._grain == 0

    def _place(self, index: int, number: int) -> torch.Tensor:
        """Where a gradient travels that cannot in its own memory; made when one first has to."""
        if number not in self._flats:
            bucket = self.members[number]
            sizes = [self._shapes[each].numel() for each in bucket]
            kind = self._kinds[bucket[0]]
            num_items = -(-sum(sizes) // self._grain) * self._grain
            flat = self._flats[number] = torch.zeros(num_items, dtype=kind.dtype, device=kind.device)
            for each, piece in zip(bucket, flat[: sum(sizes)].split(sizes), strict=True):
                self._places[each] = piece.view(self._shapes[each])
        return self._places[index]
