"""Native kernels beside numpy's, in turn within one run: `python -m bench.kernels`.

GB/s counts the bytes of one operand: how much arriving gradient the kernel keeps up with on one core.
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


def contests(num_bytes: int) -> list[Contest]:
    random = np.random.default_rng(0)
    f32, g32 = random.standard_normal((2, num_bytes // 4), np.float32)
    f64, g64 = random.standard_normal((2, num_bytes // 8))
    i32, j32 = random.integers(-9, 9, (2, num_bytes // 4), np.int32)
    # Small enough to stay finite however often they are added up.
    halves = (random.standard_normal((4, num_bytes // 2), np.float32) * 1e-4).astype(np.float16)
    f16, g16 = halves[:2].copy()
    b16, c16 = (halves[:2].astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    wide = np.zeros(num_bytes // 2, np.float32)
    f32_out, f16_out = np.empty_like(f32), np.empty_like(f16)

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
            kernel="sum of 4 float16",
            native=lambda: _native.sum("float16", f16_out, list(halves)),
            numpy=lambda: np.sum(halves, axis=0, dtype=np.float32).astype(np.float16),
        ),
        Contest(
            kernel="float32 / 3",
            native=lambda: _native.store("float32", f32_out, g32, 1 / 3),
            numpy=lambda: np.divide(g32, np.float32(3), out=f32_out),
        ),
        Contest(kernel="crc32c", native=lambda: _native.crc32c(g32), numpy=lambda: zlib.crc32(g32)),
    ]


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
        for contest in contests(num_bytes):
            native, numpy = (num_bytes / duration / 1e9 for duration in race(contest))
            size = f"{num_bytes >> 10} KiB" if num_bytes < 1 << 20 else f"{num_bytes >> 20} MiB"
            print(f"{contest.kernel:<20}{size:>8}{native:>13.2f}{numpy:>12.2f}{native / numpy:>7.2f}×")


if __name__ == "__main__":
    main()
