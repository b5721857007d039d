"""ByteScheduler (SOSP'19): scaling of VGG16, ResNet50 and Transformer to 16, 32 and 64 GPUs."""

from collections.abc import Mapping, Sequence
from functools import partial

from bench.study.figures import Axes, lines, panels
from bench.study.recipe import Chart, Findings, Recipe, Row, percent
from bench.study.runs import Runs
from bench.study.settings import RDMA, TITLES, baseline, on_v100, scheduled
from bench.study.sweep import Point, gain_at, sweep, why
from legato.core import Workload
from legato.sim import Architecture, Cluster, Ownership

NOMINAL_GBPS = 100
GBPS = (400, 200, 140, 100, 70, 50, 40, 35, 30, 20, 15, 10, 5)
HOSTS = (2, 4, 8)
GPUS_PER_HOST = 8
PUBLISHED = {
    "vgg16": (124, 101, 99),
    "resnet50": (16, 12, 5),
    "transformer-big": (171, 70, 34),
}
"""Per cent over vanilla MXNet with a parameter server over RDMA, at 16, 32 and 64 GPUs."""
PUBLISHED_MOST = 196
"""Per cent, of all frameworks and architectures; the text does not say where."""
SCALING_GBPS = 40


def _task(model: str) -> Workload:
    """Image models with 10,000 classes and 32 images; 512 tokens for Transformer."""
    return on_v100(model, batch=8) if model == "transformer-big" else on_v100(model, batch=32, classes=10_000)


def _cluster(architecture: Architecture, hosts: int, gbps: float = NOMINAL_GBPS) -> Cluster:
    """Hosts of eight GPUs; as many servers as hosts on machines of their own (16 machines for 64 GPUs)."""
    separate = architecture is Architecture.PS and hosts > 1
    return Cluster(
        workers=hosts,
        gbps=gbps,
        architecture=architecture,
        servers=hosts if separate else 0,
        deployment=Ownership.SEPARATE if separate else Ownership.JOINT,
        workers_per_host=GPUS_PER_HOST,
        local_gbps=1000,
        **RDMA,
    )


def _run(architecture: Architecture, runs: Runs) -> Findings:
    curves = {
        (model, hosts): sweep(runs, _task(model), _cluster(architecture, hosts), GBPS)
        for model in PUBLISHED
        for hosts in HOSTS
    }
    is_ps = architecture is Architecture.PS
    effective = effective_gbps(curves)
    rows = [
        _ps_row(model, hosts, percent, curves[model, hosts], effective)
        if is_ps
        else _allreduce_row(model, hosts, curves[model, hosts])
        for model, published in PUBLISHED.items()
        for hosts, percent in zip(HOSTS, published, strict=True)
    ]
    name = "ps" if is_ps else "allreduce"
    charts = (_gain_chart(name, curves, effective), _scaling_chart(runs, name, architecture))
    return Findings(rows=tuple(rows), charts=charts)


def effective_gbps(curves: Mapping[tuple[str, int], Sequence[Point]]) -> float:
    """The one bandwidth at which all nine gains together are nearest to the published ones."""

    def error(gbps: float) -> float:
        return sum(
            (gain_at(curves[model, hosts], gbps) - percent) ** 2
            for model, published in PUBLISHED.items()
            for hosts, percent in zip(HOSTS, published, strict=True)
        )

    return min(GBPS, key=error)


def _ps_row(model: str, hosts: int, percent: float, points: Sequence[Point], effective: float) -> Row:
    return Row(
        case=f"{TITLES[model]}, {hosts * GPUS_PER_HOST} GPUs, links delivering {effective:g} of {NOMINAL_GBPS} Gbit/s",
        ours=gain_at(points, effective),
        paper=percent,
        unit="%",
        why=why(points, percent, NOMINAL_GBPS),
    )


def _allreduce_row(model: str, hosts: int, points: Sequence[Point]) -> Row:
    peak = max(points, key=lambda point: point.gain)
    return Row(
        case=f"{TITLES[model]}, {hosts * GPUS_PER_HOST} GPUs, at its best bandwidth",
        ours=peak.gain,
        paper=None,
        unit="%",
        why=f"Not published by row (at most {PUBLISHED_MOST:+d} % of all setups); the peak is at {peak.gbps:g} Gbit/s, "
        f"{percent(gain_at(points, NOMINAL_GBPS))} at {NOMINAL_GBPS}.",
    )


def _gain_chart(name: str, curves: Mapping[tuple[str, int], Sequence[Point]], effective: float) -> Chart:
    is_ps = name == "ps"
    shown = {TITLES[model]: curves[model, HOSTS[-1]] for model in PUBLISHED}
    best = {title: max(point.gain for point in points) for title, points in shown.items()}
    finding = (
        f"Links that deliver {effective:g} of {NOMINAL_GBPS} Gbit/s come nearest to the published gains; none makes "
        f"VGG16's {PUBLISHED['vgg16'][-1]} % (ours peaks at {best['VGG16']:.0f} %)"
        if is_ps
        else f"Over all-reduce scheduling gains at most {max(best.values()):.0f} %: less than over a parameter server, "
        "where a part's push overlaps another's pull"
    )
    return Chart(
        name=f"bytescheduler-{name}-gain",
        finding=finding,
        caption=(
            "Gain in speed of the best of 10 ByteScheduler plans over a framework without a scheduler, against what "
            "the links deliver; 8 hosts of 8 V100s; 512 tokens a GPU are assumed for Transformer."
            + (
                " Eight servers on machines of their own are assumed. Dashed: published, at nominal 100 Gbit/s. "
                f"{effective:g} is fitted to the nine gains."
                if is_ps
                else ""
            )
        ),
        figure=lines(
            finding,
            {title: ([p.gbps for p in points], [p.gain for p in points]) for title, points in shown.items()},
            Axes(x="bandwidth of a link, Gbit/s", y="gain in speed, %", log_x=True, x_ticks=GBPS),
            {TITLES[model]: published[-1] for model, published in PUBLISHED.items()} if is_ps else None,
        ),
    )


def _scaling_chart(runs: Runs, name: str, architecture: Architecture) -> Chart:
    gpus = [hosts * GPUS_PER_HOST for hosts in (1, *HOSTS)]
    charts = {}
    reached = {}
    for model in PUBLISHED:
        task = _task(model)
        alone_s = task.compute_s
        speeds: dict[str, list[float]] = {"linear": [], "without scheduling": [], "scheduled": []}
        for count, hosts in zip(gpus, (1, *HOSTS), strict=True):
            cluster = _cluster(architecture, hosts, SCALING_GBPS)
            plain_s, best_s = alone_s, alone_s
            if hosts > 1:
                plain_s = runs.run(task, cluster, baseline(task, cluster)).iteration_s
                best_s = runs.best(task, cluster, scheduled(task, cluster)).iteration_s
            speeds["linear"].append(count)
            speeds["without scheduling"].append(count * alone_s / plain_s)
            speeds["scheduled"].append(count * alone_s / best_s)
        reached[TITLES[model]] = speeds["scheduled"][-1] / gpus[-1]
        charts[TITLES[model]] = {label: (gpus, values) for label, values in speeds.items()}
    listed = ", ".join(f"{share * 100:.0f} % ({title})" for title, share in reached.items())
    finding = f"With links that deliver {SCALING_GBPS} Gbit/s, 64 scheduled GPUs reach {listed} of linear scaling"
    return Chart(
        name=f"bytescheduler-{name}-scaling",
        finding=finding,
        caption="Speed in multiples of one GPU against the number of GPUs; a host of 8 counts as linear.",
        figure=panels(finding, charts, Axes(x="GPUs", y="speed, GPUs' worth", x_ticks=gpus), columns=3),
    )


RECIPES = (
    Recipe(
        "bytescheduler-ps",
        "ByteScheduler (SOSP'19), MXNet, parameter server, RDMA",
        "How much does scheduling gain at 16, 32 and 64 GPUs over a parameter server?",
        partial(_run, Architecture.PS),
    ),
    Recipe(
        "bytescheduler-allreduce",
        "ByteScheduler (SOSP'19), all-reduce",
        "And over all-reduce?",
        partial(_run, Architecture.ALLREDUCE),
    ),
)
