"""Preemption at the socket: a small urgent task in the middle of a large one that is not. The engine alone."""

import statistics
import time
from collections.abc import Iterator

import numpy as np

from bench.report import Figure
from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed

NUM_WORKERS = 4
BULK_BYTES = 256_000_000
URGENT_BYTES = 64_000
NUM_ROUNDS = 3
NUM_URGENT = 20
FIRST_S, EVERY_S = 0.3, 0.1


def measure() -> Iterator[Figure]:
    with Testbed(hosts=NUM_WORKERS, gbps=1) as testbed:
        launch = Launch(num_workers=NUM_WORKERS, conductor=testbed.address(0))
        ranks = crew.run(testbed, range(NUM_WORKERS), interrupt, launch)
    # A task is over when it is over everywhere.
    alone_s, interrupted_s, *latencies_s = (max(values) for values in zip(*ranks, strict=True))
    yield Figure(
        section="preemption",
        case="64 KB of priority 0 within 256 MB of priority 9",
        value=statistics.median(latencies_s) * 1e3,
        unit="ms",
        at_most=10,
        details={"worst ms": max(latencies_s) * 1e3, "count": len(latencies_s)},
    )
    yield Figure(
        section="preemption",
        case="loss of the 256 MB",
        value=(interrupted_s / alone_s - 1) * 100,
        unit="%",
        at_most=2,
        details={"alone ms": alone_s * 1e3, "interrupted ms": interrupted_s * 1e3, "times": NUM_URGENT},
    )


def interrupt(station: crew.Station, launch: Launch) -> list[float]:
    """Median seconds of the bulk alone and interrupted, then the latency of each interruption."""
    bulk = np.full(BULK_BYTES // 4, station.rank + 1, np.float32)
    urgent = np.full(URGENT_BYTES // 4, station.rank + 1, np.float32)
    bulk_sum, urgent_sum = np.zeros_like(bulk), np.zeros_like(urgent)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    latencies: list[float] = []
    with launch.group(station.rank) as group:
        group.push_pull("bulk", bulk, out=bulk_sum, step=0)  # agrees on the tensors, touches the memory
        group.push_pull("urgent", urgent, out=urgent_sum, step=0)
        for index in range(2 * NUM_ROUNDS):
            begin_s = station.meet()
            handle = group.push_pull_async("bulk", bulk, out=bulk_sum, priority=9, step=index + 1)
            is_interrupted = index % 2 == 1
            for count in range(NUM_URGENT if is_interrupted else 0):
                due_s = begin_s + FIRST_S + count * EVERY_S
                time.sleep(max(due_s - time.monotonic(), 0.0))
                group.push_pull("urgent", urgent, out=urgent_sum, step=(index << 8) + count + 1)
                latencies.append(time.monotonic() - due_s)
            handle.wait()
            seconds[is_interrupted].append(time.monotonic() - begin_s)
    return [statistics.median(seconds[False]), statistics.median(seconds[True]), *latencies]
