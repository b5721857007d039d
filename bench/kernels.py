"""Native kernels beside numpy's, in turn within one run: `python -m bench.kernels`.

GB/s counts the bytes of one operand: how much arriving gradient the kernel keeps up with on one core. Codecs count the
bytes of the gradient, not what it becomes; beside their decoding stands numpy's copy.
"""

import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from legato import _native

NUM_ROUNDS = 21
MIN_ROUND_S = 0.004


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The same work done twice."""

    kernel: str
    native: Callable[[], object]
    numpy: Callable[[], object]
    """How numpy does it; the checksum, which numpy lacks, is zlib's CRC-32."""
    at_least: float | None = None
    """GB/s that it must reach."""


def contests(num_bytes: int) -> list[Contest]:
    random = np.random.default_rng(0)
    f32, g32 = random.standard_normal((2, num_bytes // 4), np.float32)
    f64, g64 = random.standard_normal((2, num_bytes // 8))
    i32, j32 = random.integers(-9, 9, (2, num_bytes // 4), np.int32)
    # Small enough to stay finite however often they are added up.
    halves = (random.standard_normal((2, num_bytes // 2), np.float32) * 1e-4).astype(np.float16)
    f16, g16 = halves.copy()
    b16, c16 = (halves.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    wide = np.zeros(num_bytes // 2, np.float32)
    f32_out = np.empty_like(f32)

    def add_bfloat16() -> None:
        total = (b16.astype(np.uint32) << 16).view(np.float32) + (c16.astype(np.uint32) << 16).view(np.float32)
        bits = total.view(np.uint32)
        b16[:] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16

    return [
        Contest(
            kernel="add float32",
            native=lambda: _native.add("float32", f32, g32),
            numpy=lambda: np.add(f32, g32, out=f32),
        ),
        Contest(
            kernel="add float64",
            native=lambda: _native.add("float64", f64, g64),
            numpy=lambda: np.add(f64, g64, out=f64),
        ),
        Contest(
            kernel="add float16",
            native=lambda: _native.add("float16", f16, g16),
            numpy=lambda: np.add(f16, g16, out=f16),
        ),
        Contest(kernel="add bfloat16", native=lambda: _native.add("bfloat16", b16, c16), numpy=add_bfloat16),
        Contest(
            kernel="add int32",
            native=lambda: _native.add("int32", i32, j32),
            numpy=lambda: np.add(i32, j32, out=i32),
        ),
        Contest(
            kernel="max float32",
            native=lambda: _native.reduce("float32", "max", f32, g32),
            numpy=lambda: np.maximum(f32, g32, out=f32),
        ),
        Contest(
            kernel="float32 += float16",
            native=lambda: _native.reduce("float16", "sum", wide, g16),
            numpy=lambda: np.add(wide, g16, out=wide),
        ),
        Contest(
            kernel="float32 / 3",
            native=lambda: _native.store("float32", f32_out, g32, 1 / 3),
            numpy=lambda: np.divide(g32, np.float32(3), out=f32_out),
        ),
        Contest(kernel="crc32c", native=lambda: _native.crc32c(g32), numpy=lambda: zlib.crc32(g32)),
    ]


def codec_contests(num_bytes: int) -> list[Contest]:
    """Encoding and decoding a gradient; numpy in its plainest way."""
    items = np.random.default_rng(0).standard_normal(num_bytes // 4, np.float32)
    out = np.empty_like(items)
    k = len(items) // 100
    largest = float(np.abs(items).max())

    def numpy_onebit() -> None:
        np.abs(items).mean()
        np.packbits(items < 0, bitorder="little")

    def numpy_topk() -> None:
        indices = np.argpartition(np.abs(items), -k)[-k:]
        items[indices]

    def numpy_dithering() -> None:
        np.floor(np.abs(items) * (7 / np.abs(items).max()) + np.random.default_rng(0).random(len(items), np.float32))

    rows: list[tuple[str, _native.Codec, Callable[[], object], float | None]] = [
        ("fp16", _native.Codec.fp16(), lambda: items.astype(np.float16), 4.0),
        ("bf16", _native.Codec.bf16(), lambda: items.view(np.uint32) + 0x7FFF >> 16, 4.0),
        ("int8", _native.Codec.int8(), lambda: np.rint(items * (127 / largest)).astype(np.int8), 4.0),
        ("onebit", _native.Codec.onebit(True), numpy_onebit, 2.0),
        ("topk 1 %", _native.Codec.topk(0.01), numpy_topk, 1.0),
        ("randomk 1 %", _native.Codec.randomk(0.01, 0), items[::100].copy, None),
        ("dithering 7", _native.Codec.dithering(7, "linear", "max", 0), numpy_dithering, None),
    ]

    def contests_of(name: str, codec: _native.Codec, numpy: Callable[[], object], least: float | None) -> list[Contest]:
        data = np.empty(codec.encoded_bytes(len(items)), np.uint8)
        codec.encode(data, items, scale=largest)

        def encode() -> None:
            codec.encode(data, items, scale=largest)

        def decode() -> None:
            codec.decode(out, data, scale=largest)

        return [
            Contest(kernel=f"{name}: encode", native=encode, numpy=numpy, at_least=least),
            Contest(kernel=f"{name}: decode", native=decode, numpy=lambda: np.copyto(out, items), at_least=least),
        ]

    return [contest for row in rows for contest in contests_of(*row)]


def seconds(work: Callable[[], object], num_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(num_calls):
        work()
    return (time.perf_counter() - start) / num_calls


def race(contest: Contest) -> tuple[float, float]:
    """Median seconds of each, taken in turn, so that a disturbance of the machine meets both."""
    num_calls = [max(1, round(MIN_ROUND_S / seconds(work, 2))) for work in (contest.native, contest.numpy)]
    rounds = [(seconds(contest.native, num_calls[0]), seconds(contest.numpy, num_calls[1])) for _ in range(NUM_ROUNDS)]
    native, numpy = zip(*rounds, strict=True)
    return statistics.median(native), statistics.median(numpy)


def main() -> None:
    print(f"instruction set: {_native.instruction_set()}, numpy {np.__version__}")
    print(f"{'kernel':<20}{'size':>8}{'native GB/s':>13}{'numpy GB/s':>12}{'ratio':>8}")
    for num_bytes in (64 << 10, 1 << 20, 16 << 20):
        for contest in [*contests(num_bytes), *codec_contests(num_bytes)]:
            native, numpy = (num_bytes / duration / 1e9 for duration in race(contest))
            size = f"{num_bytes >> 10} KiB" if num_bytes < 1 << 20 else f"{num_bytes >> 20} MiB"
            wanted = "" if contest.at_least is None else f"  ≥ {contest.at_least:g}"
            missed = "  missed" if contest.at_least is not None and native < contest.at_least else ""
            print(f"{contest.kernel:<20}{size:>8}{native:>13.2f}{numpy:>12.2f}{native / numpy:>7.2f}×{wanted}{missed}")


if __name__ == "__main__":
    main()
