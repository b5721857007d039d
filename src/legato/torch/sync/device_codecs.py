"""Codecs on a gradient's own device: the bytes that the host's codecs make, by torch's operations.

An accelerator's gradient is encoded before it is copied to the host, so that only what travels crosses the bus. The
bytes equal those of native/kernels/codec_*.cpp on any device, so the other ranks and the servers need not know.

A part is encoded for itself (native/engine/protocol/coding.hpp). Parts of one length are the rows of a matrix here, and
a tensor has at most two lengths, so the number of kernels does not grow with the number of parts. Every rounding is an
operation of torch's own: a multiplication and an addition in one would round once. For the same reason divisors are
tensors of the device: torch multiplies by the reciprocal of a number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch

from legato._native import Codec, mix, place_of
from legato.compression.codecs import Bf16, Dithering, Fp16, OneBit, RandomK
from legato.compression.scheme import Scheme

Parts = Sequence[tuple[int, int]]
"""(offset, length) of each part in bytes of float32, as they follow each other."""
_FLOAT_BYTES = 4
_ALL_BUT_SIGN = 0x7FFFFFFF
_BITS_PER_WORD = 32
_SUM_BLOCK = 1024


class DeviceCodec(Protocol):
    """A codec over parts of one length, a row for each; `places` is what chance depends on."""

    def encode(self, rows: torch.Tensor, places: Sequence[int], contributor: int) -> torch.Tensor:
        """A row of bytes for each row of float32."""

    def decode(self, data: torch.Tensor, num_items: int, places: Sequence[int]) -> torch.Tensor:
        """A row of float32 for each row of bytes, also of bytes that are all ones: of those, some items are NaN."""


def device_codec(scheme: Scheme, num_items: int) -> DeviceCodec | None:
    """What encodes a tensor of so many items on its device; None where only the host does."""
    codec = scheme.codec
    if isinstance(codec, Fp16 | Bf16):
        return _Cast(torch.float16 if isinstance(codec, Fp16) else torch.bfloat16)
    if isinstance(codec, OneBit):
        return _OneBit(codec.scaling)
    if isinstance(codec, RandomK):
        return _RandomK(codec.push(num_items), codec.seed)
    if isinstance(codec, Dithering):
        return _Dithering(codec)
    return None


def codes_on(device: torch.device) -> bool:
    """Whether gradients are encoded there: where they would have to be copied to the host's codecs first."""
    return device.type == "cuda"


class Coder:
    """Encodes the gradients of one tensor on their device, step after step, and decodes their averages.

    It remembers what the engine's worker would (`CodingMemory`), on the device.
    """

    def __init__(self, scheme: Scheme, codec: DeviceCodec, tensor: int, num_items: int, rank: int) -> None:
        """`tensor` is the engine's number of it, `rank` this worker's."""
        self._scheme = scheme
        self._codec = codec
        self._tensor = tensor
        self._rank = rank
        self._kernel = scheme.codec.push(num_items)
        self._owed: torch.Tensor | None = None
        self._momentum: torch.Tensor | None = None
        self._remembered: torch.cuda.Event | None = None
        self.most_bytes = num_items * self._kernel.encoded_bytes(1)
        """What travels, however the tensor is cut."""

    def num_bytes(self, parts: Parts) -> int:
        """Of all parts as they travel."""
        return sum(self._kernel.encoded_bytes(length // _FLOAT_BYTES) for _, length in parts)

    def encode(self, items: torch.Tensor, step: int, parts: Parts) -> torch.Tensor:
        """The parts of a flat tensor as they travel, one behind the other; on the current stream."""
        scheme = self._scheme
        if not scheme.momentum and not scheme.error_feedback:
            return self._encode(items, step, parts)
        self._begin_remembering(items)
        if self._momentum is not None:
            self._momentum = _finite(scheme.momentum * self._momentum + items)
            items = items + scheme.momentum * self._momentum
        if self._owed is not None:
            items = self._owed + items
        data = self._encode(items, step, parts)
        if self._owed is not None:
            self._owed = _finite(items - self.decode(data, step, parts))
        if self._remembered is not None:
            self._remembered.record(torch.cuda.current_stream(items.device))
        return data

    def decode(self, data: torch.Tensor, step: int, parts: Parts) -> torch.Tensor:
        """What `encode` made, or the average of it, as a flat tensor; on the current stream."""
        decoded, begin = [], 0
        for num_items, places in self._rows(step, parts):
            num_bytes = len(places) * self._kernel.encoded_bytes(num_items)
            rows = data[begin : begin + num_bytes].reshape(len(places), -1)
            decoded.append(self._codec.decode(rows, num_items, places).reshape(-1))
            begin += num_bytes
        return decoded[0] if len(decoded) == 1 else torch.cat(decoded)

    def _encode(self, items: torch.Tensor, step: int, parts: Parts) -> torch.Tensor:
        encoded, begin = [], 0
        for num_items, places in self._rows(step, parts):
            rows = items[begin : begin + len(places) * num_items].reshape(len(places), num_items)
            encoded.append(self._codec.encode(rows, places, self._rank).reshape(-1))
            begin += rows.numel()
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded)

    def _rows(self, step: int, parts: Parts) -> Iterator[tuple[int, list[int]]]:
        """Neighbouring parts of one length: how many items each has, and their places."""
        for length, group in groupby(parts, key=lambda part: part[1]):
            yield length // _FLOAT_BYTES, [place_of(self._tensor, step, offset) for offset, _ in group]

    def _begin_remembering(self, items: torch.Tensor) -> None:
        if self._owed is None and self._scheme.error_feedback:
            self._owed = torch.zeros_like(items)
        if self._momentum is None and self._scheme.momentum:
            self._momentum = torch.zeros_like(items)
        if self._remembered is not None:  # on another stream, perhaps: what is remembered was made there
            current = torch.cuda.current_stream(items.device)
            current.wait_event(self._remembered)
            for memory in (self._owed, self._momentum):
                if memory is not None:
                    memory.record_stream(current)
        elif items.is_cuda:
            self._remembered = torch.cuda.Event()


def _finite(items: torch.Tensor) -> torch.Tensor:
    return torch.where(items.isfinite(), items, 0.0)


# ---- codecs ----


@dataclass(frozen=True)
class _Cast:
    dtype: torch.dtype

    def encode(self, rows: torch.Tensor, places: Sequence[int], contributor: int) -> torch.Tensor:
        del places, contributor
        return rows.to(self.dtype).view(torch.uint8)

    def decode(self, data: torch.Tensor, num_items: int, places: Sequence[int]) -> torch.Tensor:
        del num_items, places
        return data.view(self.dtype).float()


@dataclass(frozen=True)
class _OneBit:
    scaling: bool

    def encode(self, rows: torch.Tensor, places: Sequence[int], contributor: int) -> torch.Tensor:
        del places, contributor
        total = _sum(rows.double().abs())
        mean = total / torch.full_like(total, rows.shape[1])
        unit = mean.float() if self.scaling else torch.ones_like(mean, dtype=torch.float32)
        scale = torch.where(mean.isfinite(), unit, torch.nan)
        signs = _padded((rows < 0).to(torch.uint8), _BITS_PER_WORD)
        return torch.cat([_bytes_of(scale), _packed(signs, 1)], 1)

    def decode(self, data: torch.Tensor, num_items: int, places: Sequence[int]) -> torch.Tensor:
        del places
        signs = _unpacked(data[:, _FLOAT_BYTES:], 1)[:, :num_items]
        scale = data[:, :_FLOAT_BYTES].clone(memory_format=torch.contiguous_format).view(torch.int32)
        return (scale ^ signs.to(torch.int32) << _BITS_PER_WORD - 1).view(torch.float32)


@dataclass(frozen=True)
class _RandomK:
    kernel: Codec
    seed: int

    def encode(self, rows: torch.Tensor, places: Sequence[int], contributor: int) -> torch.Tensor:
        del contributor
        return rows.gather(1, self._indices(rows, rows.shape[1], places)).view(torch.uint8)

    def decode(self, data: torch.Tensor, num_items: int, places: Sequence[int]) -> torch.Tensor:
        values = data.view(torch.float32)
        items = values.new_zeros(len(places), num_items)
        return items.scatter_(1, self._indices(values, num_items, places), values)

    def _indices(self, like: torch.Tensor, num_items: int, places: Sequence[int]) -> torch.Tensor:
        count = self.kernel.encoded_bytes(num_items) // _FLOAT_BYTES
        bounds = torch.arange(count + 1, device=like.device) * num_items // count
        random = _chance([mix(self.seed ^ place) for place in places], count, like.device)
        return bounds[:-1] + ((random.long() & 0xFFFFFFFF) * bounds.diff() >> 32)


class _Dithering:
    def __init__(self, codec: Dithering) -> None:
        self._num_levels = codec.k
        self._num_bits = 2 if codec.k <= 1 else 4 if codec.k <= 7 else 8  # two's complement
        self._is_linear = codec.partition == "linear"
        self._norm: Callable[[torch.Tensor], torch.Tensor] = _largest if codec.normalize == "max" else _length
        self._seed = codec.seed

    def encode(self, rows: torch.Tensor, places: Sequence[int], contributor: int) -> torch.Tensor:
        norm = self._norm(rows)
        factor = torch.full_like(norm, self._num_levels if self._is_linear else 1) / norm
        norm = torch.where(factor.isinf(), 0.0, norm)  # zero, or so small that nothing can be divided by it
        keys = [mix(self._seed ^ place ^ mix(contributor + 1)) for place in places]
        random = _chance(keys, rows.shape[1], rows.device)
        level = (self._linear if self._is_linear else self._natural)(rows.abs() * factor, random)
        sign = rows.view(torch.int32) >> _BITS_PER_WORD - 1  # 0 or -1
        codes = (level.clamp(max=self._num_levels) ^ sign) - sign
        codes = torch.where((norm > 0) & norm.isfinite(), codes, 0) & (1 << self._num_bits) - 1
        return torch.cat(
            [_bytes_of(norm), _packed(_padded(codes.to(torch.uint8), 8 // self._num_bits), self._num_bits)], 1
        )

    def decode(self, data: torch.Tensor, num_items: int, places: Sequence[int]) -> torch.Tensor:
        del places
        norm = data[:, :_FLOAT_BYTES].clone(memory_format=torch.contiguous_format).view(torch.float32)
        codes = _unpacked(data[:, _FLOAT_BYTES:], self._num_bits)[:, :num_items].to(torch.int32)
        level = codes - (codes >> self._num_bits - 1 << self._num_bits)
        if self._is_linear:
            return level.float() * (norm / torch.full_like(norm, self._num_levels))
        power = (level.abs() - self._num_levels).clamp(max=0) + 127 << 23
        size = norm * torch.where(level == 0, 0.0, power.view(torch.float32))
        return torch.where(level < 0, -size, size)

    @staticmethod
    def _linear(y: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
        return (y + _shifted(random, 8).float() * 2.0**-24).to(torch.int32)

    def _natural(self, y: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
        random, bits = _shifted(random, 9), y.view(torch.int32)
        smallest = 2.0 ** (1 - self._num_levels)
        power = (bits >> 23) + (random < (bits & 0x7FFFFF)).to(torch.int32) - 127 + self._num_levels
        is_above_bar = random.float() * 2.0**-23 * smallest < y
        return torch.where(y < smallest, is_above_bar.to(torch.int32), power)


# ---- what they share ----


def _bytes_of(column: torch.Tensor) -> torch.Tensor:
    return column.contiguous().view(torch.uint8)


def _padded(rows: torch.Tensor, multiple: int) -> torch.Tensor:
    """With zeros at the end of each row."""
    missing = -rows.shape[1] % multiple
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows


def _packed(codes: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Codes of so many bits in bytes, the first in the lowest bits; each row fills whole bytes."""
    codes = codes.reshape(len(codes), -1, 8 // num_bits)
    return (codes << _shifts(num_bits, codes.device)).sum(-1, dtype=torch.uint8)


def _unpacked(data: torch.Tensor, num_bits: int) -> torch.Tensor:
    """The way back."""
    codes = data[..., None] >> _shifts(num_bits, data.device) & (1 << num_bits) - 1
    return codes.reshape(len(data), -1)


def _shifts(num_bits: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, 8, num_bits, dtype=torch.uint8, device=device)


def _largest(rows: torch.Tensor) -> torch.Tensor:
    """Of each row the largest magnitude, by its bits: they are ordered alike, and NaN comes after all of them."""
    return (rows.view(torch.int32) & _ALL_BUT_SIGN).amax(1, keepdim=True).view(torch.float32)


def _length(rows: torch.Tensor) -> torch.Tensor:
    """Of each row its Euclidean norm."""
    wide = rows.double()
    norm = _sum(wide * wide).sqrt().float()
    return torch.where(norm.isnan(), torch.nan, norm)  # one NaN, whichever it came from


def _sum(rows: torch.Tensor) -> torch.Tensor:
    """Of each row, in the order of `sum_of` (native/kernels/codec_loops.hpp)."""
    blocks = _padded(rows, _SUM_BLOCK).reshape(len(rows), -1, _SUM_BLOCK)
    while blocks.shape[2] > 1:
        half = blocks.shape[2] // 2
        blocks = blocks[..., :half] + blocks[..., half:]
    sums = blocks[..., 0]
    while sums.shape[1] > 1:
        sums = _padded(sums, 2)
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums


def _chance(keys: Sequence[int], count: int, device: torch.device) -> torch.Tensor:
    """`chance` of native/kernels/chance.hpp for the first indices, in rows by key; 32 bits, as signed numbers."""
    halves = [[_signed(key & 0xFFFFFFFF), _signed(key >> 32)] for key in keys]
    # From pinned memory, or the thread would wait for all that the stream has to do.
    words = torch.tensor(halves, dtype=torch.int32, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    x = (torch.arange(count, dtype=torch.int32, device=device) ^ words[:, :1]) * _signed(0x9E3779B9) + words[:, 1:]
    x = (x ^ _shifted(x, 16)) * _signed(0x7FEB352D)
    x = (x ^ _shifted(x, 15)) * _signed(0x846CA68B)
    return x ^ _shifted(x, 16)


def _signed(word: int) -> int:
    """The number with the same 32 bits, as torch has them: its products keep the lowest 32."""
    return word - (word >> 31 << 32)


def _shifted(x: torch.Tensor, num_bits: int) -> torch.Tensor:
    """To the right, with zeros from the left."""
    return x >> num_bits & (1 << _BITS_PER_WORD - num_bits) - 1
