"""Several workers on a host: through memory against Gloo, and what of them the network sees. The engine alone."""

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.report import Figure
from bench.sections.loopback import AllReduce, gloo, native
from bench.testbed import crew, goodput
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed

NUM_WORKERS = 4
"""On each host."""
NUM_HOSTS = 2
GBPS = 1.0
NUM_BYTES = 64_000_000
NUM_ROUNDS = 7
NUM_STEPS = 5
_LOOPBACK = "127.0.0.1"


class Step(NamedTuple):
    """What one step took on one rank."""

    wall_s: float
    sent_bytes: int
    """By its whole host, over the network."""


def measure() -> Iterator[Figure]:
    yield from _on_one_host()
    with Testbed(hosts=NUM_HOSTS, gbps=GBPS) as testbed:
        yield from _on_several(testbed)


def _on_one_host() -> Iterator[Figure]:
    with Testbed(hosts=1) as testbed:
        launch = Launch(num_workers=NUM_WORKERS, conductor=_LOOPBACK)
        ranks = crew.run(testbed, [0] * NUM_WORKERS, take_turns, launch)
    seconds = {
        system: statistics.median(max(turn) for turn in zip(*(rank[system] for rank in ranks), strict=True))
        for system in ranks[0]
    }
    yield Figure(
        section="hosts",
        case=f"64 MB, {NUM_WORKERS} workers on one host, over Gloo",
        value=seconds["gloo"] / seconds["native"],
        unit="× Gloo",
        at_least=2.0,
        details={f"{system} ms": 1e3 * wall_s for system, wall_s in seconds.items()},
    )


def take_turns(station: crew.Station, launch: Launch) -> dict[str, list[float]]:
    """Seconds of each all-reduce on one rank, the systems in turn."""
    gradient = np.zeros(NUM_BYTES // 4, np.float32)
    seconds: dict[str, list[float]] = {"native": [], "gloo": []}
    with native(launch, station.rank) as reduce_native, gloo(station.rank, NUM_WORKERS) as reduce_gloo:
        systems: dict[str, AllReduce] = {"native": reduce_native, "gloo": reduce_gloo}
        for _ in range(NUM_ROUNDS + 1):
            for system, reduce in systems.items():
                gradient.fill(station.rank + 1)
                begin_s = station.meet()
                reduce(gradient)
                seconds[system].append(time.monotonic() - begin_s)
                if not np.all(gradient == NUM_WORKERS * (NUM_WORKERS + 1) / 2):
                    raise AssertionError(f"{system}: the sum is wrong on rank {station.rank}")
    return {system: values[1:] for system, values in seconds.items()}  # the first round sets everything up


def _on_several(testbed: Testbed) -> Iterator[Figure]:
    links = goodput.measure(testbed)
    ideal_s = 2 * (NUM_HOSTS - 1) / NUM_HOSTS * NUM_BYTES / links.bytes_per_s
    alone = _steps(testbed, range(NUM_HOSTS))
    crowd = _steps(testbed, [host for host in range(NUM_HOSTS) for _ in range(NUM_WORKERS)])
    yield Figure(
        section="hosts",
        case=f"{NUM_HOSTS} hosts × {NUM_WORKERS} workers, bytes on the wire of a host, over one worker's",
        value=crowd.sent_bytes / alone.sent_bytes,
        unit="× one worker's",
        at_most=1.02,
        details={"MB": crowd.sent_bytes * 1e-6, "one worker's MB": alone.sent_bytes * 1e-6},
    )
    yield Figure(
        section="hosts",
        case=f"{NUM_HOSTS} hosts × {NUM_WORKERS} workers, 64 MB, over bytes / goodput",
        value=crowd.wall_s / ideal_s,
        unit="× raw TCP's time",
        at_most=1.10,
        details={"ms": crowd.wall_s * 1e3, "one worker each, ms": alone.wall_s * 1e3, "ideal ms": ideal_s * 1e3},
    )


def _steps(testbed: Testbed, hosts: Sequence[int]) -> Step:
    """The median step, over when it is over everywhere, and the most that a host sent in it."""
    launch = Launch(num_workers=len(hosts), conductor=testbed.address(0))
    ranks = crew.run(testbed, hosts, push_pull, launch)
    steps = [
        Step(max(one.wall_s for one in step), max(one.sent_bytes for one in step)) for step in zip(*ranks, strict=True)
    ]
    wall_s: float = statistics.median(step.wall_s for step in steps)
    return Step(wall_s, int(statistics.median(step.sent_bytes for step in steps)))


def push_pull(station: crew.Station, launch: Launch) -> list[Step]:
    """Each step on one rank, from the instant at which all begin."""
    num_workers = launch.num_workers
    value = np.full(NUM_BYTES // 4, station.rank + 1, np.float32)
    total = np.zeros_like(value)
    steps = []
    with launch.group(station.rank) as group:
        for number in range(NUM_STEPS + 1):
            sent_before = _sent_bytes()
            begin_s = station.meet()
            group.push_pull("gradient", value, out=total, step=number)
            wall_s = time.monotonic() - begin_s
            station.meet()
            steps.append(Step(wall_s, _sent_bytes() - sent_before))
            station.meet()
        if not np.all(total == num_workers * (num_workers + 1) / 2):
            raise AssertionError(f"the sum is wrong on rank {station.rank}")
    return steps[1:]  # the first step also agrees on the tensor and touches its memory


def _sent_bytes() -> int:
    """What the host's interface has sent, by the kernel's own count."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    [counters] = [line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:")]
    return int(counters[8])
