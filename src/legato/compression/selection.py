"""Selections: which tensor is compressed how, by its name and size."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from legato.compression.byteps import from_byteps, is_byteps
from legato.compression.scheme import Scheme, parse
from legato.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns of names, and the scheme of what they match first; what nothing matches travels as it is."""

    schemes: tuple[tuple[str, Scheme | None], ...] = ()
    """Patterns as in a shell (`embed.*`), in order of precedence."""
    min_compress_bytes: int | None = None
    """Smaller tensors travel as they are; None leaves it to each codec (0 for casts, 65536 for the others)."""

    def __post_init__(self) -> None:
        if self.min_compress_bytes is not None and self.min_compress_bytes < 0:
            raise InputError(f"min_compress_bytes is {self.min_compress_bytes}; accepted is a whole number from 0 on")

    def scheme(self, name: str, dtype: str, num_items: int) -> Scheme | None:
        """How a tensor travels; InputError where its scheme cannot be used for it."""
        scheme = next((scheme for pattern, scheme in self.schemes if fnmatchcase(name, pattern)), None)
        if scheme is None:
            return None
        if dtype != "float32":
            raise InputError(
                f"tensor {name!r} is {dtype}, but compression {scheme.words()} is for float32; "
                f'choose "none" for it: {{"{name}": "none", ...}}'
            )
        least = scheme.codec.min_bytes if self.min_compress_bytes is None else self.min_compress_bytes
        if not num_items or 4 * num_items < least:
            return None
        try:
            scheme.codec.push(num_items)
        except InputError as error:
            raise InputError(f"tensor {name!r}: {error}") from None
        return scheme


PLAIN = Selection()
"""Everything travels as it is."""


def select(value: "str | Mapping[str, Any] | Scheme | Selection | None", min_compress_bytes: int | None) -> Selection:
    """What the user asked for: a scheme for all, one for each pattern, or BytePS's parameters."""
    if isinstance(value, Selection):
        return value
    if isinstance(value, Mapping) and not is_byteps(value):
        schemes = tuple((pattern, _scheme(each)) for pattern, each in value.items())
    else:
        schemes = (("*", _scheme(value)),)
    return Selection(schemes=schemes, min_compress_bytes=min_compress_bytes)


def _scheme(value: Any) -> Scheme | None:
    if value is None or isinstance(value, Scheme):
        return value
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, Mapping) and is_byteps(value):
        return from_byteps(value)
    raise InputError(
        f'compression is {value!r:.80}; accepted are "topk:0.01+ef" and the like, {{"pattern": scheme}}, '
        "and BytePS's parameters"
    )
