"""Growth to 4,096 workers, which no paper shows."""

from collections.abc import Callable, Iterable

from bench.study.figures import Axes, lines
from bench.study.recipe import Chart, Findings, Recipe, Row
from bench.study.runs import Runs
from bench.study.settings import MIB, RDMA, baseline, on_v100, scheduled
from legato.core import Plan, Workload
from legato.core.policies import ReduceScatterAllGather
from legato.sim import Architecture, Cluster

WORKERS = (2, 8, 32, 128, 512, 1024, 2048, 4096)
GBPS = 25
MODEL = "resnet50"


def _rsag(task: Workload, cluster: Cluster) -> Iterable[Plan]:
    del cluster
    return [ReduceScatterAllGather(bucket_bytes=size * MIB).plan(task.tensors) for size in (4, 8, 16, 25, 64, 128)]


WAYS: dict[str, tuple[Architecture, Callable[[Workload, Cluster], Iterable[Plan]]]] = {
    "joint, scheduled": (Architecture.PS, scheduled),
    "joint, fifo": (Architecture.PS, lambda task, cluster: (baseline(task, cluster),)),
    "ring, rsag at its best buckets": (Architecture.ALLREDUCE, _rsag),
    "ring, DDP's buckets": (Architecture.ALLREDUCE, lambda task, cluster: (baseline(task, cluster),)),
}


def _grow(runs: Runs) -> Findings:
    task = on_v100(MODEL)
    series: dict[str, tuple[list[float], list[float]]] = {}
    for name, (architecture, plans) in WAYS.items():
        efficiency = []
        for workers in WORKERS:
            cluster = Cluster(workers=workers, gbps=GBPS, architecture=architecture, **RDMA)
            outcome = runs.best(task, cluster, plans(task, cluster))
            efficiency.append(outcome.compute_s / outcome.iteration_s * 100)
        series[name] = (list(WORKERS), efficiency)
    joint, ring = series["joint, scheduled"][1][-1], series["ring, rsag at its best buckets"][1][-1]
    finding = f"At 4,096 workers scheduled joint sums keep {joint:.0f} % of linear scaling, a flat ring {ring:.0f} %"
    hops_s = 2 * (WORKERS[-1] - 1) * RDMA["latency_s"]
    return Findings(
        rows=tuple(
            Row(
                case=f"{name}, 4,096 workers",
                ours=values[-1],
                paper=None,
                unit="% of linear",
                why="Two hops whatever the size, and 2(n−1)/n of the bytes."
                if "joint" in name
                else f"2(n−1) hops of {RDMA['latency_s'] * 1e6:.0f} µs are {hops_s * 1e3:.0f} ms for every operation.",
            )
            for name, (_, values) in series.items()
        ),
        charts=(
            Chart(
                name="growth",
                finding=finding,
                caption=f"ResNet50, batch 32, {GBPS} Gbit/s, RDMA's costs, one V100 a worker. Alike workers are "
                "simulated as one; connections, stragglers and a network with fewer links than hosts are not modelled.",
                figure=lines(
                    finding,
                    series,
                    Axes(x="workers", y="per cent of linear", log_x=True, x_ticks=WORKERS, y_range=(0, 105)),
                ),
            ),
        ),
    )


RECIPES = (Recipe("growth", "legato", "How far does it scale?", _grow),)
