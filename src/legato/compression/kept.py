"""topk and randomk: some of the items, all others zero (Stich et al., 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from legato import _native
from legato.compression.codec import Codec
from legato.errors import InputError

_VALUE_BYTES = 4
_INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Kept(Codec):
    main: ClassVar[str | None] = "k"

    k: float = 0.0
    """How many of a tensor's items are kept: a fraction below 1, or a whole number."""

    def __post_init__(self) -> None:
        if not (0 < self.k < 1 or (self.k >= 1 and float(self.k).is_integer())):
            raise InputError(
                f"codec {self.name}: k is {self.k:g}; accepted is a fraction above 0 and below 1, or a whole number"
            )

    def density(self, num_items: int) -> float:
        """The fraction of items that is kept of each part."""
        if self.k > num_items:
            raise InputError(f"codec {self.name}: k is {self.k:g}, but the tensor has {num_items} items")
        return self.k if self.k < 1 else self.k / num_items


@dataclass(frozen=True, slots=True)
class TopK(_Kept):
    """The items of the largest magnitude, with their indices; of each part its share.

    A sum keeps what all workers sent together, so that only workers lose anything; where that is more than all items
    without indices, the sum travels as it is.
    """

    name: ClassVar[str] = "topk"

    def push(self, num_items: int) -> _native.Codec:
        return _native.Codec.topk(self.density(num_items))

    def pull(self, num_items: int, num_workers: int) -> _native.Codec:
        density = self.density(num_items) * num_workers
        is_smaller = density * (_INDEX_BYTES + _VALUE_BYTES) < _VALUE_BYTES
        return _native.Codec.topk(density) if is_smaller else _native.Codec.raw()


@dataclass(frozen=True, slots=True)
class RandomK(_Kept):
    """Items by chance, the same on all ranks and others in each step: no indices travel, and a sum loses nothing."""

    name: ClassVar[str] = "randomk"

    seed: int = 0
    """Another seed, other items."""

    def __post_init__(self) -> None:
        _Kept.__post_init__(self)
        check_seed(self.name, self.seed)

    def push(self, num_items: int) -> _native.Codec:
        return _native.Codec.randomk(self.density(num_items), self.seed)


def check_seed(codec: str, seed: int) -> None:
    if not 0 <= seed < 1 << 64:
        raise InputError(f"codec {codec}: seed is {seed}; accepted is a whole number from 0 to 2^64 - 1")
