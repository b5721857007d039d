"""What the simulator says and what it costs: `python bench/simulator.py`.

Two tables: the policies for all-reduce against T* on three published settings, and the time to simulate one iteration
against the number of parts.
"""

from time import perf_counter
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from legato.core import Policy
from legato.core.policies import ByteScheduler, DeAR, ReduceScatterAllGather, WaitFree
from legato.sim import Architecture, Cluster, Simulation, simulate
from legato.sim.zoo import workload

MIB = 1 << 20
BUCKETS = tuple(size * MIB for size in (1, 2, 4, 6, 8, 12, 16, 20, 25))
WHOLE = 1 << 40
"""A partition that cuts nothing."""


class Setting(NamedTuple):
    """A model and a cluster; the latency is within the 10 to 50 µs that the published figures assume."""

    model: str
    batch: int
    workers: int
    gbps: float
    latency_s: float


SETTINGS = (
    Setting("resnet50", 64, 16, 10, 50e-6),
    Setting("resnet50", 64, 64, 10, 50e-6),
    Setting("bert-base", 32, 16, 25, 20e-6),
)

CANDIDATES: dict[str, list[tuple[Policy, int | None]]] = {
    "DDP's buckets": [(WaitFree(), None)],
    "priority, per tensor": [(ByteScheduler(), WHOLE)],
    "priority, bucketed": [(ByteScheduler(fusion_bytes=size), WHOLE) for size in BUCKETS],
    "DeAR": [(DeAR(bucket_bytes=size), None) for size in BUCKETS],
    "rsag": [(ReduceScatterAllGather(bucket_bytes=size), None) for size in BUCKETS],
}
"""Where a policy has a bucket size, its best one counts: that is what a tuner would find."""


def ratios(setting: Setting) -> dict[str, float]:
    """Iteration over T* of every candidate."""
    task = workload(setting.model, batch=setting.batch)
    cluster = Cluster(
        workers=setting.workers,
        gbps=setting.gbps,
        latency_s=setting.latency_s,
        architecture=Architecture.ALLREDUCE,
    )

    def ratio(policy: Policy, partition_bytes: int | None) -> float:
        return simulate(task, cluster, policy.plan(task.tensors, partition_bytes=partition_bytes)).ratio

    return {name: min(ratio(*option) for option in options) for name, options in CANDIDATES.items()}


def seconds_per_iteration(partition_bytes: int) -> tuple[int, float]:
    """(number of parts, time to simulate one iteration) of vgg16 on 8 workers; the best of a few."""
    task = workload("vgg16")
    plan = ByteScheduler().plan(task.tensors, partition_bytes=partition_bytes, credit_bytes=4 * partition_bytes)
    simulation = Simulation(task, Cluster(workers=8, gbps=10), plan)
    times = []
    for _ in range(5):
        begin = perf_counter()
        simulation.advance(1)
        times.append(perf_counter() - begin)
    return sum(-(-tensor.num_bytes // partition_bytes) for tensor in task.tensors), min(times)


def main() -> None:
    console = Console()
    table = Table(title="all-reduce: iteration / T*")
    table.add_column("setting")
    for name in CANDIDATES:
        table.add_column(name, justify="right")
    for setting in SETTINGS:
        name = f"{setting.model} n={setting.workers} {setting.gbps:g}G α={setting.latency_s * 1e6:.0f}µs"
        table.add_row(name, *(f"{value:.2f}" for value in ratios(setting).values()))
    console.print(table)
    costs = Table(title="cost of simulating one iteration of vgg16, 8 workers")
    for column in ("part", "parts", "ms", "µs per part"):
        costs.add_column(column, justify="right")
    for partition_bytes in (16_000_000, 4_000_000, 1_000_000, 250_000, 64_000, 16_000):
        parts, seconds = seconds_per_iteration(partition_bytes)
        costs.add_row(f"{partition_bytes:,}", str(parts), f"{seconds * 1e3:.2f}", f"{seconds / parts * 1e6:.1f}")
    console.print(costs)


if __name__ == "__main__":
    main()
