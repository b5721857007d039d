"""Compression: gradients in fewer bytes on the wire, chosen for each tensor."""

from legato.compression.byteps import from_byteps
from legato.compression.codec import Codec
from legato.compression.scheme import Scheme, parse
from legato.compression.selection import PLAIN, Selection, select

__all__ = ["PLAIN", "Codec", "Scheme", "Selection", "from_byteps", "parse", "select"]
