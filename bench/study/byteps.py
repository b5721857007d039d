"""BytePS (OSDI'20): what k CPU servers beside n workers gain."""

from collections.abc import Callable, Iterator
from math import sqrt

from bench.study.figures import Axes, bars, lines
from bench.study.recipe import Chart, Findings, Recipe, Row, gain, percent
from bench.study.runs import Runs
from bench.study.settings import FREE, MB, RDMA, TCP, TITLES, Cost, at, baseline, on_v100, priority, scheduled
from legato.core import Layer, Plan, Workload
from legato.core.policies import Fifo
from legato.sim import Architecture, Cluster, Ownership

HOSTS = 8
BYTES_ONLY = Workload("bytes", (Layer("tensor", 400 * MB, 1e-9, 1e-9),))
"""Nothing to compute: the time is that of the bytes."""


def _cluster(hosts: int, servers: int, gbps: float, cost: Cost = FREE) -> Cluster:
    return Cluster(
        workers=hosts,
        gbps=gbps,
        servers=servers,
        deployment=Ownership.MIXED if servers else Ownership.JOINT,
        **cost,
    )


def optimum_s(hosts: int, servers: int, num_bytes: int, gbps: float) -> float:
    """The paper's t_opt = 2n(n−1)M / ((n² + kn − 2k)B)."""
    n, k = hosts, servers
    return 2 * n * (n - 1) * num_bytes / ((n * n + k * n - 2 * k) * gbps * 1e9 / 8)


def _servers(runs: Runs) -> Findings:
    counts = list(range(HOSTS + 1))
    plan = Fifo().plan(BYTES_ONLY.tensors, partition_bytes=MB // 4)
    ours = [runs.run(BYTES_ONLY, _cluster(HOSTS, k, 100), plan).iteration_s * 1e3 for k in counts]
    paper = [optimum_s(HOSTS, k, BYTES_ONLY.num_bytes, 100) * 1e3 for k in counts]
    rows = [
        Row(
            case=f"{HOSTS} workers, {k} servers, over all-reduce",
            ours=ours[0] / ours[k],
            paper=paper[0] / paper[k],
            unit="×",
            why=f"Simulated {ours[k]:.2f} ms for 400 MB, t_opt {paper[k]:.2f} ms: "
            f"{percent((ours[k] / paper[k] - 1) * 100, 1)}, the first push and the last pull of 250 KB parts.",
        )
        for k in (2, 4, 8)
    ]
    faster = ours[0] / ours[-1]
    finding = f"{HOSTS} servers beside {HOSTS} workers move the same bytes {faster:.2f} times as fast, as t_opt says"
    return Findings(
        rows=tuple(rows),
        charts=(
            Chart(
                name="byteps-servers",
                finding=finding,
                caption=f"Time to sum 400 MB over {HOSTS} workers at 100 Gbit/s against the number of extra CPU "
                "servers; 0 servers is joint, which moves what a ring moves.",
                figure=lines(
                    finding,
                    {"simulated": (counts, ours), "t_opt": (counts, paper)},
                    Axes(x="CPU servers", y="time to sum 400 MB, ms", x_ticks=counts, y_range=(0, 1.1 * max(ours))),
                ),
            ),
        ),
    )


def _ring(hosts: int, gbps: float, cost: Cost) -> Cluster:
    return Cluster(workers=hosts, gbps=gbps, architecture=Architecture.ALLREDUCE, **cost)


SLOW_LINKS = {"resnet50": 44.0, "vgg16": 100.0}
"""Per cent over Horovod at 20 Gbit/s TCP, batch 64, published without the number of machines; four are taken here."""
EFFICIENCY = {"BytePS": 90.0, "Horovod": 70.0}
"""Per cent of linear, BERT-large on 256 GPUs, 100 Gbit/s, mixed precision, batch 64."""


def _end_to_end(runs: Runs) -> Findings:
    rows, gains = [], []
    for model, published in SLOW_LINKS.items():
        task, hosts = on_v100(model, batch=64), 4
        ring, mixed = _ring(hosts, 20, TCP), _cluster(hosts, hosts, 20, TCP)
        plain_s = runs.run(task, ring, baseline(task, ring)).iteration_s
        best_s = runs.best(task, mixed, scheduled(task, mixed)).iteration_s
        gains.append(gain(plain_s, best_s))
        needed = _delivering(runs, task, ring, baseline, best_s * (1 + published / 100))
        rows.append(
            Row(
                case=f"{TITLES[model]}, 20 Gbit/s TCP, 4 hosts + 4 servers, over a ring",
                ours=gains[-1],
                paper=published,
                unit="%",
                why=f"The ring is taken at its full 20 Gbit/s; one that delivers {needed:.3g} would be as slow as the "
                "published one.",
            )
        )
    finding = f"At 20 Gbit/s servers and scheduling gain {gains[0]:.0f} % for ResNet50 and {gains[1]:.0f} % for VGG16"
    chart = Chart(
        name="byteps-end-to-end",
        finding=finding,
        caption="Gain in speed over a ring with 25 MiB buckets; 4 hosts and 4 CPU servers, TCP, batch 64.",
        figure=bars(
            finding,
            [TITLES[model] for model in SLOW_LINKS],
            {"simulated": gains, "published": list(SLOW_LINKS.values())},
            Axes(x="", y="gain in speed, %"),
            " %",
        ),
    )
    return Findings(rows=(*rows, *_bert_rows(runs)), charts=(chart,))


def _bert_rows(runs: Runs) -> Iterator[Row]:
    """BERT-large on 32 hosts; mixed precision computes about three times as fast."""
    task, hosts = on_v100("bert-large", batch=64).scaled(time_by=1 / 3), 32
    ways: dict[str, tuple[Cluster, Callable[[Workload, Cluster], Plan]]] = {
        "BytePS": (_cluster(hosts, hosts, 100, RDMA), lambda task, cluster: priority(task, cluster, 4 * MB, 4)),
        "Horovod": (_ring(hosts, 100, RDMA), baseline),
    }
    for name, (cluster, plan) in ways.items():
        outcome = runs.run(task, cluster, plan(task, cluster))
        needed = _delivering(runs, task, cluster, plan, outcome.compute_s / EFFICIENCY[name] * 100)
        yield Row(
            case=f"BERT-large, 256 GPUs, {name}",
            ours=outcome.compute_s / outcome.iteration_s * 100,
            paper=EFFICIENCY[name],
            unit="% of linear",
            why=f"At the full 100 Gbit/s communication takes {outcome.communication_s / outcome.compute_s:.2f} of "
            f"computation; links that deliver {needed:.3g} would explain the published loss.",
        )


def _delivering(
    runs: Runs, task: Workload, cluster: Cluster, plan: Callable[[Workload, Cluster], Plan], iteration_s: float
) -> float:
    """The bandwidth at which an iteration takes that long, to about a per cent: by halving on a log scale."""
    low, high = cluster.gbps / 64, cluster.gbps
    for _ in range(9):
        middle = sqrt(low * high)
        links = at(cluster, middle)
        if runs.run(task, links, plan(task, links)).iteration_s > iteration_s:
            low = middle
        else:
            high = middle
    return high


RECIPES = (
    Recipe("byteps-servers", "BytePS (OSDI'20), t_opt", "What do k CPU servers gain?", _servers),
    Recipe("byteps-end-to-end", "BytePS (OSDI'20 and its README)", "What is left of it in training?", _end_to_end),
)
