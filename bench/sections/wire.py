"""What it costs to protect frames: the kernels, and steps over shaped links with each kind of wire in turns.

The engine alone. Two hosts share the cores of this machine, and with them the cost of both ends.
"""

import ctypes
import resource
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from bench.report import Figure
from bench.testbed import crew
from bench.testbed.launch import PORT, Launch
from bench.testbed.testbed import Testbed
from legato._native import crc32c
from legato.transports.native.player import WIRES

NUM_HOSTS = 2
NUM_BYTES = 64_000_000
NUM_ROUNDS = {1.0: 8, 10.0: 24}
"""By the links' Gbit/s."""
CHUNK_BYTES = 65536
_KERNEL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one push_pull took on one rank."""

    wall_s: float
    cpu_s: float


def measure() -> Iterator[Figure]:
    for name, pass_over in kernels().items():
        yield Figure(section="wire", case=f"{name} of 64 KiB chunks", value=_gb_per_s(pass_over), unit="GB/s of a core")
    for gbps, num_rounds in NUM_ROUNDS.items():
        with Testbed(hosts=NUM_HOSTS, gbps=gbps) as testbed:
            launch = Launch(num_workers=NUM_HOSTS, conductor=testbed.address(0))
            ranks = crew.run(testbed, range(NUM_HOSTS), take_turns, launch, num_rounds)
        yield from _figures(gbps, ranks)


def _figures(gbps: float, ranks: list[dict[str, list[Cost]]]) -> Iterator[Figure]:
    # A step is over when it is over everywhere.
    steps_s = {
        wire: [max(cost.wall_s for cost in turn) for turn in zip(*(rank[wire] for rank in ranks), strict=True)]
        for wire in WIRES
    }
    for wire in WIRES[1:]:
        # Neighbours in time are compared, so that what else the machine does hits both.
        ratios = [one / plain for one, plain in zip(steps_s[wire], steps_s["plain"], strict=True)]
        quarters = statistics.quantiles(ratios, n=4)
        yield Figure(
            section="wire",
            case=f"push_pull of 64 MB, {NUM_HOSTS} × {gbps:g} Gbit/s, {wire} over plain",
            value=quarters[1],
            unit="× plain's time",
            at_most=1.03 if wire == "authenticated" else None,
            details={
                "quarters": f"{quarters[0]:.3f} to {quarters[2]:.3f}",
                "ms": statistics.median(steps_s[wire]) * 1e3,
                "plain ms": statistics.median(steps_s["plain"]) * 1e3,
                "CPU s/GB": _cpu_s_per_gb(ranks, wire),
                "plain CPU s/GB": _cpu_s_per_gb(ranks, "plain"),
            },
        )


def take_turns(station: crew.Station, launch: Launch, num_rounds: int) -> dict[str, list[Cost]]:
    """One rank: a job for each wire, all of them open, one step of each in every round."""
    value = np.full(NUM_BYTES // 4, station.rank + 1, np.float32)
    total = np.zeros_like(value)
    costs: dict[str, list[Cost]] = {wire: [] for wire in WIRES}
    with ExitStack() as jobs:
        groups = {
            wire: jobs.enter_context(replace(launch, wire=wire, port=PORT + number).group(station.rank))
            for number, wire in enumerate(WIRES)
        }
        for step in range(num_rounds + 1):
            for wire, group in groups.items():
                begin_s, begin_cpu_s = station.meet(), _cpu_s()
                group.push_pull("gradient", value, out=total, step=step)
                costs[wire].append(Cost(wall_s=time.monotonic() - begin_s, cpu_s=_cpu_s() - begin_cpu_s))
                if not np.all(total == NUM_HOSTS * (NUM_HOSTS + 1) / 2):
                    raise AssertionError(f"{wire}: the sum is wrong on rank {station.rank}")
    return {wire: several[1:] for wire, several in costs.items()}  # the first step sets everything up


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cpu_s_per_gb(ranks: list[dict[str, list[Cost]]], wire: str) -> float:
    return statistics.median(cost.cpu_s for rank in ranks for cost in rank[wire]) / (NUM_BYTES * 1e-9)


def kernels() -> dict[str, Callable[[], object]]:
    """One pass over a chunk: what a sender does to it, but for a checksum that it shares with other readers."""
    chunk = ctypes.create_string_buffer(secrets.token_bytes(CHUNK_BYTES), CHUNK_BYTES)
    output = ctypes.create_string_buffer(CHUNK_BYTES)
    return {
        "CRC-32C": lambda: crc32c(chunk),
        "GMAC": _gcm(chunk, None),
        "AES-256-GCM": _gcm(chunk, output),
    }


def _gcm(chunk: ctypes.Array[ctypes.c_char], output: ctypes.Array[ctypes.c_char] | None) -> Callable[[], object]:
    library = ctypes.CDLL("libcrypto.so.3")
    library.EVP_CIPHER_CTX_new.restype = library.EVP_aes_256_gcm.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.EVP_CIPHER_CTX_new())
    cipher = ctypes.c_void_p(library.EVP_aes_256_gcm())
    library.EVP_CipherInit_ex(context, cipher, None, secrets.token_bytes(32), None, 1)
    num_done = ctypes.c_int()
    tag = ctypes.create_string_buffer(16)
    number = 0

    def seal() -> None:
        nonlocal number
        number += 1
        library.EVP_CipherInit_ex(context, None, None, None, number.to_bytes(12, "little"), -1)
        library.EVP_CipherUpdate(context, output, ctypes.byref(num_done), chunk, CHUNK_BYTES)
        library.EVP_CipherFinal_ex(context, tag, ctypes.byref(num_done))
        library.EVP_CIPHER_CTX_ctrl(context, 0x10, 16, tag)

    return seal


def _gb_per_s(pass_over: Callable[[], object]) -> float:
    """Of a core: the best of several stretches of the processor's time, so others' work matters little."""
    best = 0.0
    for _ in range(5):
        begin_s = time.process_time()
        num_passes = 0
        while (spent_s := time.process_time() - begin_s) < _KERNEL_S / 5:
            pass_over()
            num_passes += 1
        best = max(best, num_passes * CHUNK_BYTES * 1e-9 / spent_s)
    return best
