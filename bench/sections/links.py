"""push_pull over shaped links: against raw TCP, and with extra servers. The engine alone."""

import statistics
import time
from collections.abc import Iterator

import numpy as np

from bench.report import Figure
from bench.testbed import crew, goodput
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed

NUM_WORKERS = 4
NUM_SERVERS = 4
GBPS = 1.0
NUM_BYTES = 64_000_000
NUM_STEPS = 5


def measure() -> Iterator[Figure]:
    with Testbed(hosts=NUM_WORKERS + NUM_SERVERS, gbps=GBPS) as testbed:
        links = goodput.measure(testbed)
        ideal_s = 2 * (NUM_WORKERS - 1) / NUM_WORKERS * NUM_BYTES / links.bytes_per_s
        joint_s = _step_s(testbed, num_servers=0)
        yield Figure(
            section="links",
            case=f"push_pull of 64 MB, {NUM_WORKERS} hosts, over raw TCP",
            value=joint_s / ideal_s,
            unit="× raw TCP's time",
            at_most=1.05,
            details={"ms": joint_s * 1e3, "ideal ms": ideal_s * 1e3, "goodput": links.bytes_per_s * 8e-9 / GBPS},
        )
        served_s = _step_s(testbed, num_servers=NUM_SERVERS)
        yield Figure(
            section="links",
            case=f"with {NUM_SERVERS} extra servers, over joint",
            value=served_s / joint_s,
            unit="× joint's time",
            at_most=0.72,
            details={"ms": served_s * 1e3, "theory": 2 / 3},
        )


def _step_s(testbed: Testbed, num_servers: int) -> float:
    launch = Launch(num_workers=NUM_WORKERS, num_servers=num_servers, conductor=testbed.address(0))
    with launch.served(testbed):
        ranks = crew.run(testbed, range(NUM_WORKERS), push_pull, launch)
    # A step is over when it is over everywhere.
    seconds: float = statistics.median(max(step) for step in zip(*ranks, strict=True))
    return seconds


def push_pull(station: crew.Station, launch: Launch) -> list[float]:
    """Seconds of each step on one rank, from the instant at which all begin."""
    value = np.full(NUM_BYTES // 4, station.rank + 1, np.float32)
    total = np.zeros_like(value)
    seconds = []
    with launch.group(station.rank) as group:
        for step in range(NUM_STEPS + 1):
            begin_s = station.meet()
            group.push_pull("gradient", value, out=total, step=step)
            seconds.append(time.monotonic() - begin_s)
        if not np.all(total == NUM_WORKERS * (NUM_WORKERS + 1) / 2):
            raise AssertionError(f"the sum is wrong on rank {station.rank}")
    return seconds[1:]  # the first step also agrees on the tensor and touches its memory
