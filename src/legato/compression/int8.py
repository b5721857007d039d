"""int8: whole numbers of a unit that the workers agree on, so that the server adds up numbers as they are."""

from dataclasses import dataclass
from typing import ClassVar

from legato import _native
from legato.compression.codec import Codec


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
