"""dithering: a few levels of a norm, up or down by chance (QSGD, 2017; natural compression, 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from legato import _native
from legato.compression.codec import Codec, check_choice, check_range
from legato.compression.kept import check_seed

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
        check_range(self.name, "k", self.k, 1, _MOST[self.partition])
        check_seed(self.name, self.seed)

    def push(self, num_items: int) -> _native.Codec:
        del num_items
        return _native.Codec.dithering(self.k, self.partition, self.normalize, self.seed)
