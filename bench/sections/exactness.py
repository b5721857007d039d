"""Sums that must be exact to the bit, whatever the order, the plan and the number of workers, and for how long.

The engine alone.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.report import Figure
from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed
from legato.core.policies import ByteScheduler
from legato.core.task import Tensor
from legato.transports.declaration import ITEM_BYTES
from legato.transports.native.group import NativeGroup

MAX_WORKERS = 8
SMALL_ITEMS = (0, 1, 12_345, 65_536)
LARGE_BYTES = 64_000_000
HUGE_BYTES = 1_000_000_000
NUM_REPLANNED_STEPS = 40
TENSORS = [(f"tensor{index}", 1000 * 3**index) for index in range(7)]
NUM_STEPS = 10_000
_LOOPBACK = "127.0.0.1"
_MIB = 1 << 20

Array = npt.NDArray[Any]


class Footprint(NamedTuple):
    """What a process holds."""

    mib: float
    descriptors: int
    threads: int


def measure() -> Iterator[Figure]:
    with Testbed(hosts=1) as testbed:
        for num_workers in range(1, MAX_WORKERS + 1):
            yield from _count(testbed, num_workers, "all dtypes, 0 B to 512 KB, random orders", sum_small)
        for num_workers in (2, 4, 8):
            yield from _count(testbed, num_workers, "64 MB", sum_large, LARGE_BYTES)
        yield from _count(testbed, 2, "1 GB", sum_large, HUGE_BYTES)
        yield from _count(testbed, 4, "with the plan changing", sum_under_changing_plans)
        yield from _endure(testbed)


def _count(testbed: Testbed, num_workers: int, what: str, work: Any, *args: object) -> Iterator[Figure]:
    begin_s = time.monotonic()
    wrong = crew.run(testbed, [0] * num_workers, work, _launch(num_workers), *args)
    yield Figure(
        section="exactness",
        case=f"{num_workers} workers, {what}",
        value=sum(count for count, _ in wrong),
        unit="wrong",
        at_most=0,
        details={"sums": sum(total for _, total in wrong), "s": time.monotonic() - begin_s},
    )


def _endure(testbed: Testbed) -> Iterator[Figure]:
    before, after = crew.run(testbed, [0] * 2, step_on, _launch(2))[0]
    for name, begin, end, tolerance in zip(Footprint._fields, before, after, (1.0, 0, 0), strict=True):
        yield Figure(
            section="exactness",
            case=f"growth of {name} over {NUM_STEPS} steps",
            value=end - begin,
            unit=name,
            at_most=tolerance,
            details={"before": begin, "after": end},
        )


def _launch(num_workers: int) -> Launch:
    return Launch(num_workers=num_workers, conductor=_LOOPBACK)


def sum_small(station: crew.Station, launch: Launch) -> tuple[int, int]:
    """(wrong, all) sums on one rank: every dtype and size at once, submitted in an order of this rank's own."""
    with launch.group(station.rank) as group:
        cases = [(dtype, num_items) for dtype in ITEM_BYTES for num_items in SMALL_ITEMS]
        random.Random(station.rank).shuffle(cases)
        values = {case: numbers(*case, group.rank) for case in cases}
        handles = [
            group.push_pull_async(
                f"{dtype}/{num_items}",
                (values[dtype, num_items].ctypes.data, values[dtype, num_items].nbytes, dtype),
                priority=index % 3,
                step=0,
            )
            for index, (dtype, num_items) in enumerate(cases)
        ]
        for handle in handles:
            handle.wait()
        return sum(not np.array_equal(values[case], total(*case, group.size)) for case in cases), len(cases)


def sum_large(station: crew.Station, launch: Launch, num_bytes: int) -> tuple[int, int]:
    with launch.group(station.rank) as group:
        value = numbers("float32", num_bytes // 4, group.rank)
        group.push_pull("large", value, step=0)
        return int(not np.array_equal(value, total("float32", num_bytes // 4, group.size))), 1


def sum_under_changing_plans(station: crew.Station, launch: Launch) -> tuple[int, int]:
    """Rank 0 announces another partition and credit every few steps, while tasks are in flight."""
    wrong = 0
    with launch.group(station.rank) as group:
        for step in range(NUM_REPLANNED_STEPS):
            values = [numbers("float32", num_items, group.rank) for _, num_items in TENSORS]
            handles = [
                group.push_pull_async(name, value, priority=priority, step=step)
                for priority, ((name, _), value) in enumerate(zip(TENSORS, values, strict=True))
            ]
            if station.rank == 0 and step % 5 == 0:
                _replan(group, step)
            for handle in handles:
                handle.wait()
            wrong += sum(
                not np.array_equal(value, total("float32", num_items, group.size))
                for value, (_, num_items) in zip(values, TENSORS, strict=True)
            )
    return wrong, NUM_REPLANNED_STEPS * len(TENSORS)


def _replan(group: NativeGroup, step: int) -> None:
    partition_bytes = 4096 << (step // 5)
    known = [
        Tensor(name=name, num_bytes=4 * num_items, priority=place) for place, (name, num_items) in enumerate(TENSORS)
    ]
    plan = ByteScheduler().plan(known, partition_bytes=partition_bytes, credit_bytes=4 * partition_bytes)
    group.set_plan(plan, step + 3)  # the others may be ahead of this rank, but not by two steps


def step_on(station: crew.Station, launch: Launch) -> tuple[Footprint, Footprint]:
    """What a process holds after a tenth of the steps, when every pool has filled, and after all."""
    footprints = []
    with launch.group(station.rank) as group:
        value = np.zeros(100_000, np.float32)
        for step in range(NUM_STEPS + 1):
            if step in (NUM_STEPS // 10, NUM_STEPS):
                footprints.append(footprint())
            group.push_pull("gradient", value, step=step)
    before, after = footprints
    return before, after


def footprint() -> Footprint:
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return Footprint(
        mib=resident * 4096 / _MIB,
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        threads=len(list(Path("/proc/self/task").iterdir())),
    )


def numbers(dtype: str, num_items: int, rank: int) -> Array:
    """Small whole numbers, different on every rank: their sums are exact in every dtype."""
    return as_dtype((np.arange(num_items, dtype=np.int32) * 7 + rank * 5) % 13, dtype)


def total(dtype: str, num_items: int, num_workers: int) -> Array:
    """What the ranks' numbers add up to."""
    sums = np.zeros(num_items, np.int32)
    for rank in range(num_workers):
        sums += (np.arange(num_items, dtype=np.int32) * 7 + rank * 5) % 13
    return as_dtype(sums, dtype)


def as_dtype(values: npt.NDArray[np.int32], dtype: str) -> Array:
    if dtype != "bfloat16":
        return values.astype(dtype)
    # numpy has no bfloat16: it is the upper half of a float32, whose lower half is 0 for whole numbers below 256.
    upper: Array = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return upper
