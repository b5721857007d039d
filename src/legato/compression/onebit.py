"""onebit: signs, and one scale for each part (Seide et al., 2014)."""

from dataclasses import dataclass
from typing import ClassVar

from legato import _native
from legato.compression.codec import Codec


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
