"""Sparse rows beside the whole table: an embedding of a million rows of which a step touches a thousand.

The engine alone.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from bench.report import Figure
from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.testbed import Testbed
from legato.transports.native.group import NativeGroup
from legato.transports.native.rows import Rows

NUM_ROWS, WIDTH, NUM_TOUCHED = 1_000_000, 64, 1_000
NUM_HOSTS, GBPS = 2, 1.0
NUM_ROUNDS = 5

Cost = tuple[float, float]
"""Seconds and bytes sent."""


def measure() -> Iterator[Figure]:
    with Testbed(hosts=NUM_HOSTS, gbps=GBPS) as testbed:
        launch = Launch(num_workers=NUM_HOSTS, conductor=testbed.address(0))
        ranks = crew.run(testbed, range(NUM_HOSTS), take_turns, launch)
    sparse, dense = ranks[0]
    yield Figure(
        section="rows",
        case=f"{NUM_ROWS:,} × {WIDTH}, {NUM_TOUCHED:,} rows touched, {NUM_HOSTS} × {GBPS:g} Gbit/s: time over dense",
        value=sparse[0] / dense[0],
        unit="× dense",
        at_most=1.0,
        details={"sparse ms": sparse[0] * 1e3, "dense ms": dense[0] * 1e3},
    )
    yield Figure(
        section="rows",
        case="bytes over dense",
        value=sparse[1] / dense[1],
        unit="× dense",
        at_most=1.0,
        details={"sparse bytes": sparse[1], "dense bytes": dense[1]},
    )


def take_turns(station: crew.Station, launch: Launch) -> tuple[Cost, Cost]:
    """One rank: the rows, and the table that holds them, the latter once because it is slow."""
    random = np.random.default_rng(station.rank)
    values = random.standard_normal((NUM_TOUCHED, WIDTH), np.float32)
    rows = Rows(random.choice(NUM_ROWS, NUM_TOUCHED, replace=False), values)
    table = np.zeros((NUM_ROWS, WIDTH), np.float32)
    table[rows.indices] = values
    with launch.group(station.rank) as group:
        group.push_pull_rows("rows", rows, shape=table.shape)  # agrees on what it needs
        sparse = [
            _cost(station, group, lambda: group.push_pull_rows("rows", rows, shape=table.shape))
            for _ in range(NUM_ROUNDS)
        ]
        dense = _cost(station, group, lambda: group.push_pull("table", table))
    seconds, num_bytes = zip(*sparse, strict=True)
    return (statistics.median(seconds), statistics.median(num_bytes)), dense


def _cost(station: crew.Station, group: NativeGroup, work: Callable[[], object]) -> Cost:
    station.meet()
    before, begin_s = group.session.engine.statistics()["bytes_sent"], time.monotonic()
    work()
    seconds = time.monotonic() - begin_s
    station.meet()
    return seconds, float(group.session.engine.statistics()["bytes_sent"] - before)
