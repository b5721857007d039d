"""Compression of gradients on the wire: Horovod's pairs of functions around the sum, or codecs within it."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import torch

from legato.compression import PLAIN, Selection, select
from legato.errors import InputError


class Compressor(Protocol):
    """Makes a tensor smaller for the wire, and what comes back whole again."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and what `decompress` needs to know."""

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """The tensor as it was before, as far as that is possible."""


class NoneCompressor:
    """Sends gradients as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        del context
        return tensor


def _cast(dtype: torch.dtype, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    if tensor.is_floating_point() and tensor.element_size() > dtype.itemsize:
        return tensor.to(dtype), tensor.dtype
    return tensor, None


class FP16Compressor:
    """Sends floating-point gradients in half precision; sums are made in float32 and rounded once."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return _cast(torch.float16, tensor)

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor if context is None else tensor.to(context)


class BF16Compressor(FP16Compressor):
    """As fp16, with the range of float32 and fewer digits."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return _cast(torch.bfloat16, tensor)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


Compressing: TypeAlias = "str | Mapping[str, Any] | type[Compressor] | None"
"""What a user may ask for: a name, a scheme, schemes by pattern, BytePS's parameters, or a compressor."""


def compression_of(value: Compressing, min_compress_bytes: int | None = None) -> tuple[type[Compressor], Selection]:
    """A compressor around the sum, or codecs within it: one of the two does nothing."""
    if isinstance(value, Mapping) or (isinstance(value, str) and value not in vars(Compression)):
        return Compression.none, select(value, min_compress_bytes)
    return compressor_of(value), PLAIN


def compressor_of(value: "str | type[Compressor] | None") -> type[Compressor]:
    """What the user asked for: a name, a compressor, or None."""
    if value is None:
        return Compression.none
    if isinstance(value, str):
        known: dict[str, type[Compressor]] = {
            name: each for name, each in vars(Compression).items() if not name.startswith("_")
        }
        if value not in known:
            raise InputError(f"compression {value!r} is unknown; accepted: {', '.join(known)}")
        return known[value]
    return value
