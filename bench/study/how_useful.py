"""How Useful is Communication Scheduling for Distributed Training?: what order and partition bring, each by itself."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from bench.study.figures import Axes, lines, panels
from bench.study.recipe import Chart, Findings, Recipe, Row, gain, percent
from bench.study.runs import Runs
from bench.study.settings import FREE, MB, RDMA, TITLES, Cost, at, baseline, no_overlap, on_v100, scheduled
from legato.core import Layer, Plan, Workload
from legato.core.policies import ByteScheduler, Fifo, WaitFree
from legato.sim import Architecture, Cluster, Ownership

MODELS = ("vgg16", "resnet50", "bert-large", "gpt2")
RATIOS = (0.125, 0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0, 8.0)
"""Computation over communication."""
HOSTS = 8
PUBLISHED_BOUND = 3.0


class _Architecture(NamedTuple):
    title: str
    architecture: Architecture
    servers: int
    deployment: Ownership


ARCHITECTURES = (
    _Architecture("a parameter server", Architecture.PS, HOSTS, Ownership.SEPARATE),
    _Architecture("all-reduce", Architecture.ALLREDUCE, 0, Ownership.JOINT),
    _Architecture("BytePS", Architecture.PS, HOSTS // 2, Ownership.MIXED),
)


def _cluster(kind: _Architecture, task: Workload, ratio: float, cost: Cost) -> Cluster:
    """Links on which that workload computes `ratio` times as long as it communicates."""
    cluster = Cluster(
        workers=HOSTS,
        gbps=1,
        architecture=kind.architecture,
        servers=kind.servers,
        deployment=kind.deployment,
        **cost,
    )
    return at(cluster, cluster.seconds_per_byte * task.num_bytes * ratio / task.compute_s)


def _schedule_only(task: Workload, cluster: Cluster) -> Iterable[Plan]:
    """Whole tensors (in a ring, buckets), the most urgent first, one at a time."""
    fusion_bytes = 0 if cluster.architecture is Architecture.PS else 25 * MB
    policy = ByteScheduler(fusion_bytes=fusion_bytes)
    return (policy.plan(task.tensors, partition_bytes=1 << 40, credit_bytes=1),)


def _partition_only(task: Workload, cluster: Cluster) -> Iterable[Plan]:
    """Parts in order of arrival."""
    policy = Fifo() if cluster.architecture is Architecture.PS else WaitFree()
    return [policy.plan(task.tensors, partition_bytes=size * MB) for size in (1, 4, 16)]


VARIANTS: dict[str, Callable[[Workload, Cluster], Iterable[Plan]]] = {
    "baseline": lambda task, cluster: (baseline(task, cluster),),
    "schedule only": _schedule_only,
    "partition only": _partition_only,
    "both": scheduled,
}


def _ablation(runs: Runs) -> Findings:
    charts = []
    rows = []
    for kind in ARCHITECTURES:
        panels_of: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        for model in MODELS:
            task = on_v100(model)
            speeds: dict[str, list[float]] = {name: [] for name in VARIANTS}
            for ratio in RATIOS:
                cluster = _cluster(kind, task, ratio, RDMA)
                none_s = runs.run(task, cluster, no_overlap(task)).iteration_s
                for name, plans in VARIANTS.items():
                    speeds[name].append(none_s / runs.best(task, cluster, plans(task, cluster)).iteration_s)
            panels_of[TITLES[model]] = {name: (list(RATIOS), values) for name, values in speeds.items()}
            rows.append(_row(kind, model, speeds))
        charts.append(_chart(kind, panels_of))
    return Findings(rows=tuple(rows), charts=tuple(charts))


def _row(kind: _Architecture, model: str, speeds: dict[str, list[float]]) -> Row:
    place = max(range(len(RATIOS)), key=lambda index: speeds["both"][index] / speeds["baseline"][index])
    base = speeds["baseline"][place]
    alone = {name: gain(1 / base, 1 / speeds[name][place]) for name in ("schedule only", "partition only", "both")}
    return Row(
        case=f"{TITLES[model]}, {kind.title}: both over the baseline, at its best ratio",
        ours=speeds["both"][place] / base,
        paper=None,
        unit="×",
        why=f"At a ratio of {RATIOS[place]:g} order alone gives {percent(alone['schedule only'])}, partition alone "
        f"{percent(alone['partition only'])}, both {percent(alone['both'])}; at {RATIOS[0]:g} and {RATIOS[-1]:g} both "
        f"give {gain(1 / speeds['baseline'][0], 1 / speeds['both'][0]):+.0f} and "
        f"{percent(gain(1 / speeds['baseline'][-1], 1 / speeds['both'][-1]))}.",
    )


def _chart(kind: _Architecture, charts: dict[str, dict[str, tuple[list[float], list[float]]]]) -> Chart:
    most = max(
        both / base
        for series in charts.values()
        for both, base in zip(series["both"][1], series["baseline"][1], strict=True)
    )
    finding = (
        f"Over {kind.title}, order and partition together add up to {(most - 1) * 100:.0f} % to plain overlap, where "
        "computation is about as long as communication"
    )
    return Chart(
        name=f"how-useful-{kind.title.removeprefix('a ').replace(' ', '-').lower()}",
        finding=finding,
        caption=f"Speed over no overlap at all, against computation over communication; {HOSTS} hosts, RDMA's costs. "
        "Baseline: overlap in backward, whole tensors (in a ring, buckets of 25 MiB), in order of arrival.",
        figure=panels(
            finding,
            charts,
            Axes(x="computation / communication", y="speed over no overlap, ×", log_x=True, x_ticks=RATIOS[::2]),
        ),
    )


EVEN = Workload("100 even layers", tuple(Layer(f"layer{place}", 4 * MB, 0.001, 0.002) for place in range(100)))
"""As much to hide as there can be: no layer is large enough to be a tail."""


def _three_times(runs: Runs) -> Findings:
    """The bound: push, pull and computation one after the other, against all three at once."""
    tasks = {"100 even layers": EVEN, **{TITLES[model]: on_v100(model) for model in MODELS}}
    curves = {}
    for title, task in tasks.items():
        speeds = []
        for ratio in RATIOS:
            cluster = _cluster(ARCHITECTURES[0], task, ratio, FREE)
            none_s = runs.run(task, cluster, no_overlap(task)).iteration_s
            speeds.append(none_s / runs.best(task, cluster, scheduled(task, cluster)).iteration_s)
        curves[title] = (list(RATIOS), speeds)
    most = max(curves["100 even layers"][1])
    finding = (
        f"With push, pull and computation equally long, hiding everything gains up to {most:.2f}×; the bound is 3×"
    )
    figure = lines(
        finding, curves, Axes(x="computation / communication", y="speed over no overlap, ×", log_x=True, x_ticks=RATIOS)
    )
    figure.add_hline(PUBLISHED_BOUND, line={"dash": "dash", "color": "#888888"}, annotation_text="bound, 3×")
    return Findings(
        rows=(
            Row(
                case="hiding everything over no overlap, 100 even layers",
                ours=most,
                paper=PUBLISHED_BOUND,
                unit="×",
                why="Three equal times in a row against all at once is 3×; the first and the last of the 100 layers "
                f"cannot be hidden, and VGG16 with its large last layers reaches {max(curves['VGG16'][1]):.2f}×.",
            ),
        ),
        charts=(
            Chart(
                name="how-useful-bound",
                finding=finding,
                caption="Best plan over no overlap, servers on machines of their own (push and pull use different "
                "directions of a link), operations without cost.",
                figure=figure,
            ),
        ),
    )


RECIPES = (
    Recipe(
        "how-useful-ablation",
        "How Useful is Communication Scheduling, ablation",
        "What do order and partition bring, each by itself and together?",
        _ablation,
    ),
    Recipe(
        "how-useful-bound", "How Useful is Communication Scheduling, bound", "How much is there at most?", _three_times
    ),
)
