"""fp16 and bf16: items rounded to 16 bits; sums are made in float32 and rounded once."""

from dataclasses import dataclass
from typing import ClassVar

from legato import _native
from legato.compression.codec import Codec


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
