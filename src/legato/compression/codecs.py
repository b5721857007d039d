"""The codecs: parameters that people write, and the native kernels that they stand for (docs/compression.md)."""

from dataclasses import dataclass
from typing import ClassVar

from legato import _native
from legato.compression.codec import Codec, check_choice
from legato.errors import InputError


@dataclass(frozen=True, slots=True)
class Fp16(Codec):
    """Half precision: 11 bits of fraction, up to 65504."""

    name: ClassVar[str] = "fp16"
    min_bytes: ClassVar[int] = 0

    def push(self, num_items: int) -> _native.Codec:
        del num_items
        return _native.Codec.fp16()


@dataclass(frozen=True, slots=True)
class Bf16(Codec):
    """The range of float32 and 8 bits of fraction."""

    name: ClassVar[str] = "bf16"
    min_bytes: ClassVar[int] = 0

    def push(self, num_items: int) -> _native.Codec:
        del num_items
        return _native.Codec.bf16()


@dataclass(frozen=True, slots=True)
class OneBit(Codec):
    """A 32nd of the bytes; it needs error feedback."""

    name: ClassVar[str] = "onebit"
    loses_sums: ClassVar[bool] = True

    scaling: bool = True
    """Times the mean magnitude; without it, times 1."""

    def push(self, num_items: int) -> _native.Codec:
        del num_items
        return _native.Codec.onebit(self.scaling)


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


_MOST = {"linear": 127, "natural": 32}


@dataclass(frozen=True, slots=True)
class Dithering(Codec):
    """2 bits for each item with one level, 4 up to 7 levels, 8 beyond; right on average even without feedback."""

    name: ClassVar[str] = "dithering"
    main: ClassVar[str | None] = "k"
    loses_sums: ClassVar[bool] = True

    k: int = 0
    """Levels between zero and the norm."""
    partition: str = "linear"
    """`linear`: equal steps; `natural`: powers of two."""
    normalize: str = "max"
    """What the levels are parts of: the largest magnitude, or the Euclidean norm (`l2`)."""
    seed: int = 0
    """Another seed, other chance."""

    def __post_init__(self) -> None:
        check_choice(self.name, "partition", self.partition, tuple(_MOST))
        check_choice(self.name, "normalize", self.normalize, ("max", "l2"))
        most = _MOST[self.partition]
        if not 1 <= self.k <= most:
            raise InputError(f"codec {self.name}: k is {self.k}; accepted is a whole number from 1 to {most}")
        check_seed(self.name, self.seed)

    def push(self, num_items: int) -> _native.Codec:
        del num_items
        return _native.Codec.dithering(self.k, self.partition, self.normalize, self.seed)


@dataclass(frozen=True, slots=True)
class Int8(Codec):
    """A quarter of the bytes. Before each step the workers agree on the largest magnitude, which is 127 units.

    A sum comes back as the rounded average of the numbers, which has their range.
    """

    name: ClassVar[str] = "int8"
    loses_sums: ClassVar[bool] = True
    agrees_on_scale: ClassVar[bool] = True

    def push(self, num_items: int) -> _native.Codec:
        del num_items
        return _native.Codec.int8()
