"""The golden model: every codec in plain numpy, as slow and as clear as it can be."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Raw = npt.NDArray[np.uint8]
_U64 = np.uint64


@dataclass(frozen=True, kw_only=True)
class Context:
    """What both ends know: which items, whose, and the scale they agree on."""

    place: int = 0
    contributor: int = 0
    scale: float = 1.0


class Golden(Protocol):
    def encode(self, items: Floats, context: Context) -> Raw: ...
    def decode(self, data: Raw, num_items: int, context: Context) -> Floats: ...


def mix(x: int) -> int:
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
    return x ^ x >> 31


def chance(key: int, count: int) -> npt.NDArray[np.uint32]:
    x = (np.arange(count, dtype=np.uint32) ^ np.uint32(key % 2**32)) * np.uint32(0x9E3779B9) + np.uint32(key >> 32)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


def place_of(tensor: int, step: int, offset: int) -> int:
    """How the engine names a part: the same number on every member."""
    return mix(tensor ^ mix(step ^ mix(offset)))


def num_kept(density: float, num_items: int) -> int:
    return min(max(int(density * num_items + 0.5), 1), num_items)


def _raw(*arrays: npt.NDArray[Any]) -> Raw:
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8).ravel() for array in arrays])


def _sum(values: npt.NDArray[np.float64]) -> float:
    """Of blocks of 1024, filled up with zeros, by halves; then of neighbouring blocks, pairs of blocks, and so on."""
    blocks = np.zeros(-len(values) % 1024 + len(values))
    blocks[: len(values)] = values
    halves = blocks.reshape(-1, 1024)
    while halves.shape[1] > 1:
        half = halves.shape[1] // 2
        halves = halves[:, :half] + halves[:, half:]
    sums = [float(each) for each in halves[:, 0]]
    while len(sums) > 1:
        sums += [0.0] * (len(sums) % 2)
        sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def items_whose_order_matters() -> list[Floats]:
    """Their sum is halfway between two float32, or a little more where two small items meet before the large ones."""
    small = 2.0**-29
    every = []
    for first, second in ((1, 3), (1, 2), (1024, 3 * 1024), (2 * 1024, 3 * 1024)):
        items = np.zeros(4096, np.float32)
        items[[0, 512, first, second]] = 2**24, 1, small, small
        every.append(items)
    return every


@dataclass(frozen=True)
class Raw32:
    def encode(self, items: Floats, context: Context) -> Raw:
        del context
        return _raw(items)

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        del num_items, context
        return data.view(np.float32).copy()


@dataclass(frozen=True)
class Fp16:
    def encode(self, items: Floats, context: Context) -> Raw:
        del context
        return _raw(items.astype(np.float16))

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        del num_items, context
        return data.view(np.float16).astype(np.float32)


@dataclass(frozen=True)
class Bf16:
    def encode(self, items: Floats, context: Context) -> Raw:
        del context
        bits = items.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return _raw(np.where(np.isnan(items), (bits | np.uint32(0x400000)) >> np.uint32(16), rounded).astype(np.uint16))

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        del num_items, context
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True)
class OneBit:
    scaling: bool = True

    def encode(self, items: Floats, context: Context) -> Raw:
        del context
        mean = _sum(np.abs(items.astype(np.float64))) / len(items)
        scale = np.float32((mean if self.scaling else 1.0) if np.isfinite(mean) else np.nan)
        bits = np.zeros(-len(items) % 32 + len(items), bool)
        bits[: len(items)] = items < 0
        return _raw(np.array([scale]), np.packbits(bits, bitorder="little"))

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        del context
        scale = data[:4].view(np.float32)[0]
        negative = np.unpackbits(data[4:], bitorder="little")[:num_items].astype(bool)
        return np.where(negative, -scale, scale).astype(np.float32)


@dataclass(frozen=True)
class TopK:
    density: float

    def encode(self, items: Floats, context: Context) -> Raw:
        del context
        magnitudes = items.view(np.uint32) & np.uint32(0x7FFFFFFF)
        order = np.lexsort((np.arange(len(items)), -magnitudes.astype(np.int64)))
        indices = np.sort(order[: num_kept(self.density, len(items))])
        return _raw(indices.astype(np.uint32), items[indices])

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        del context
        indices, values = np.split(data, 2)
        items = np.zeros(num_items, np.float32)
        items[indices.view(np.uint32)] = values.view(np.float32)
        return items


@dataclass(frozen=True)
class RandomK:
    density: float
    seed: int = 0

    def _indices(self, num_items: int, context: Context) -> npt.NDArray[np.int64]:
        k = num_kept(self.density, num_items)
        bounds = np.arange(k + 1) * num_items // k
        random = chance(mix(self.seed ^ context.place), k).astype(_U64)
        return bounds[:-1] + (random * np.diff(bounds).astype(_U64) >> _U64(32)).astype(np.int64)

    def encode(self, items: Floats, context: Context) -> Raw:
        return _raw(items[self._indices(len(items), context)])

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        items = np.zeros(num_items, np.float32)
        items[self._indices(num_items, context)] = data.view(np.float32)
        return items


@dataclass(frozen=True)
class Dithering:
    num_levels: int
    levels: str = "linear"
    norm: str = "max"
    seed: int = 0

    @property
    def num_bits(self) -> int:
        return 2 if self.num_levels <= 1 else 4 if self.num_levels <= 7 else 8

    def encode(self, items: Floats, context: Context) -> Raw:
        with np.errstate(all="ignore"):
            magnitudes = np.abs(items)
            norm = np.float32(magnitudes.max() if self.norm == "max" else np.sqrt(_sum(items.astype(np.float64) ** 2)))
            factor = np.float32(self.num_levels if self.levels == "linear" else 1) / norm
            if np.isinf(factor):
                norm = np.float32(0)
            codes = np.zeros(len(items), np.int64)
            if 0 < norm < np.inf:
                key = mix(self.seed ^ context.place ^ mix(context.contributor + 1))
                dithered = self._linear if self.levels == "linear" else self._natural
                level = np.minimum(dithered(magnitudes * factor, chance(key, len(items))), self.num_levels)
                codes = np.where(items < 0, -level, level)
        per_byte = 8 // self.num_bits
        padded = np.zeros(-len(codes) % per_byte + len(codes), np.int64)
        padded[: len(codes)] = codes & (1 << self.num_bits) - 1
        shifts = np.arange(per_byte) * self.num_bits
        return _raw(np.array([norm], np.float32), (padded.reshape(-1, per_byte) << shifts).sum(axis=1).astype(np.uint8))

    @staticmethod
    def _linear(y: Floats, random: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        return (y + (random >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)).astype(np.int64)

    def _natural(self, y: Floats, random: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        fraction, exponent = np.frexp(y)  # y = fraction × 2^exponent with a fraction in [0.5, 1)
        above = (fraction * np.float32(2) - np.float32(1)) * np.float32(2**23)
        random = random >> np.uint32(9)
        level = exponent - 1 + (random < above) + self.num_levels
        smallest = np.float32(2.0 ** (1 - self.num_levels))
        lowest = random.astype(np.float32) * np.float32(2**-23) * smallest < y
        return np.where(y < smallest, lowest, level).astype(np.int64)

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        del context
        norm = data[:4].view(np.float32)[0]
        shifts = np.arange(8 // self.num_bits) * self.num_bits
        codes = (data[4:, None].astype(np.int64) >> shifts & (1 << self.num_bits) - 1).ravel()[:num_items]
        codes = np.where(codes >> self.num_bits - 1, codes - (1 << self.num_bits), codes)
        with np.errstate(all="ignore"):
            if self.levels == "linear":
                return codes.astype(np.float32) * (norm / np.float32(self.num_levels))
            size = np.ldexp(norm, (np.abs(codes) - self.num_levels).astype(np.int32)).astype(np.float32)
            return np.where(codes == 0, np.float32(0) * norm, np.where(codes < 0, -size, size)).astype(np.float32)


@dataclass(frozen=True)
class Int8:
    def encode(self, items: Floats, context: Context) -> Raw:
        with np.errstate(all="ignore"):
            factor = np.float32(127) / np.float32(context.scale)
            if not 0 < factor < np.inf:
                return np.zeros(len(items), np.uint8)
            return _raw(np.rint(np.clip(items * factor, -127, 127)).astype(np.int8))

    def decode(self, data: Raw, num_items: int, context: Context) -> Floats:
        del num_items
        with np.errstate(all="ignore"):
            return data.view(np.int8).astype(np.float32) * (np.float32(context.scale) / np.float32(127))
