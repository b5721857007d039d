"""What the whole study says in three pictures: where scheduling helps and where it loses, what it hides, and how."""

from collections.abc import Iterator, Sequence

from bench.study.figures import Axes, gantt, panels, stack
from bench.study.recipe import Chart, Findings, Recipe, Row, gain, percent
from bench.study.runs import Runs
from bench.study.settings import MB, TCP, TITLES, at, baseline, on_v100, priority, scheduled
from legato.core import Complete, Plan, Workload
from legato.core.policies import P3, ByteScheduler
from legato.sim import Architecture, Cluster, simulate

HOSTS = 8
GBPS = (0.5, 1, 2, 5, 10, 15, 25, 40, 60, 100)
MODELS = ("vgg16", "resnet50", "bert-large", "gpt2")
CLUSTERS = {
    "parameter server": Cluster(workers=HOSTS, gbps=10, **TCP),
    "all-reduce": Cluster(workers=HOSTS, gbps=10, architecture=Architecture.ALLREDUCE, **TCP),
}


def _fixed(task: Workload, cluster: Cluster) -> dict[str, Plan]:
    """Plans that nobody has tuned. P3 is made for a parameter server."""
    plans = {"ByteScheduler's defaults": ByteScheduler().plan(task.tensors)}
    if cluster.architecture is Architecture.PS:
        plans["P3"] = P3().plan(task.tensors)
    return plans


def _where(runs: Runs) -> Findings:
    """Speedup against bandwidth over the same transport without a scheduler."""
    charts: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    rows = []
    for title, cluster in CLUSTERS.items():
        for model in ("resnet50", "bert-large"):
            task = on_v100(model)
            series: dict[str, list[float]] = {"best plan": [], **{name: [] for name in _fixed(task, cluster)}}
            for gbps in GBPS:
                links = at(cluster, gbps)
                before_s = runs.run(task, links, baseline(task, links)).iteration_s
                series["best plan"].append(gain(before_s, runs.best(task, links, scheduled(task, links)).iteration_s))
                for name, plan in _fixed(task, cluster).items():
                    series[name].append(gain(before_s, runs.run(task, links, plan).iteration_s))
            panel = f"{TITLES[model]}, {title}"
            charts[panel] = {name: (list(GBPS), values) for name, values in series.items()}
            worst = min(
                (
                    (value, name, gbps)
                    for name, values in series.items()
                    for value, gbps in zip(values, GBPS, strict=True)
                ),
            )
            rows.append(
                Row(
                    case=f"{panel}: the most that the best plan gains",
                    ours=max(series["best plan"]),
                    paper=None,
                    unit="%",
                    why=f"At its worst the best plan changes {percent(min(series['best plan']), 1)}. What loses most "
                    f"is {worst[1]}: {-worst[0]:.0f} % at {worst[2]:g} Gbit/s, by what parts cost beside their bytes.",
                )
            )
    gained = max(max(series["best plan"][1]) for series in charts.values())
    lost = -min(min(values) for series in charts.values() for _, values in series.values())
    finding = (
        f"The right plan gains up to {gained:.0f} %, where communication is about as long as computation; the wrong "
        f"one loses up to {lost:.0f} %"
    )
    return Findings(
        rows=tuple(rows),
        charts=(
            Chart(
                name="bandwidth",
                finding=finding,
                caption=f"Gain in speed over the same transport without a scheduler (parameter server: fifo; "
                f"all-reduce: 25 MiB buckets); {HOSTS} hosts of one V100, TCP. Below 0 scheduling loses.",
                figure=panels(
                    finding,
                    charts,
                    Axes(x="bandwidth, Gbit/s", y="gain in speed, %", log_x=True, x_ticks=(0.5, 1, 2, 5, 10, 25, 100)),
                ),
            ),
        ),
    )


def _hidden(runs: Runs) -> Findings:
    """Step time as computation, and communication that is hidden or exposed."""
    labels, compute, hidden, exposed, rows = [], [], [], [], []
    cluster = CLUSTERS["parameter server"]
    for model in MODELS:
        task = on_v100(model)
        # Links on which the two are equally long: where there is most to hide.
        links = at(cluster, cluster.gbps * cluster.seconds_per_byte * task.num_bytes / task.compute_s)
        for name, plans in {"fifo": [baseline(task, links)], "scheduled": scheduled(task, links)}.items():
            outcome = runs.best(task, links, plans)
            labels.append(f"{TITLES[model]}, {links.gbps:.1f} Gbit/s, {name}")
            open_s = outcome.iteration_s - outcome.compute_s
            shade_s = max(outcome.communication_s - open_s, 0.0)
            compute.append((outcome.compute_s - shade_s) * 1e3)
            hidden.append(shade_s * 1e3)
            exposed.append(open_s * 1e3)
        rows.append(
            Row(
                case=f"{TITLES[model]}: communication left exposed, scheduled over fifo",
                ours=exposed[-1] / exposed[-2],
                paper=None,
                unit="×",
                why=f"Of {hidden[-1] + exposed[-1]:.0f} ms of communication fifo leaves {exposed[-2]:.0f} ms exposed, "
                f"scheduling {exposed[-1]:.0f} ms.",
            )
        )
    left = [row.ours * 100 for row in rows]
    finding = (
        f"Where communication takes as long as computation, scheduling leaves {min(left):.0f} to {max(left):.0f} % of "
        "what fifo exposes; the rest hides"
    )
    return Findings(
        rows=tuple(rows),
        charts=(
            Chart(
                name="stack",
                finding=finding,
                caption=f"One step; {HOSTS} hosts, parameter server, TCP, at the bandwidth at which communication "
                "takes as long as computation. Exposed communication makes the step longer than computation.",
                figure=stack(
                    finding,
                    labels,
                    {
                        "computation alone": compute,
                        "computation with communication hidden behind it": hidden,
                        "exposed communication": exposed,
                    },
                    "ms",
                ),
            ),
        ),
    )


Span = tuple[str, str, float, float]


def spans(task: Workload, trace: Sequence[Complete], step: int) -> Iterator[Span]:
    """One turn of the wheel in ms: backward of `step`, the way of each tensor, forward of the step after.

    A gradient is ready when its layer's backward ends; a layer runs forward when the one before is through and its own
    tensor is back. Every layer must have bytes.
    """
    lives = {entry.task.tensor: entry for entry in trace if entry.task.step == step}
    last = len(task.layers) - 1
    zero_s = lives[last].ready_s - task.layers[last].backward_s
    now_s = 0.0
    for place, layer in enumerate(task.layers):
        life = lives[place]
        yield layer.name, "backward", _ms(life.ready_s - layer.backward_s - zero_s), _ms(life.ready_s - zero_s)
        yield layer.name, "communication", _ms(life.started_s - zero_s), _ms(life.finished_s - zero_s)
        now_s = max(now_s, life.finished_s)
        yield layer.name, "forward", _ms(now_s - zero_s), _ms(now_s + layer.forward_s - zero_s)
        now_s += layer.forward_s


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _order(runs: Runs) -> Findings:
    """Fifo and scheduled, layer by layer."""
    del runs  # the trace of a run is not kept
    task = on_v100("vgg16")
    cluster = at(CLUSTERS["parameter server"], 50)
    plans = {"fifo": baseline(task, cluster), "scheduled": priority(task, cluster, 4 * MB, 4)}
    results = {name: simulate(task, cluster, plan) for name, plan in plans.items()}
    charts = {
        f"{name}: {result.iteration_s * 1e3:.0f} ms a step": list(spans(task, result.trace, result.trace[0].task.step))
        for name, result in results.items()
    }
    fifo, best = results["fifo"], results["scheduled"]
    gained = gain(fifo.iteration_s, best.iteration_s)
    finding = f"Sending first what forward needs first starts the next step earlier: {percent(gained)} for VGG16"
    first = {name: result.trace for name, result in results.items()}
    back_s = {
        name: next(e.finished_s - e.ready_s for e in trace if e.task.tensor == 0) for name, trace in first.items()
    }
    return Findings(
        rows=(
            Row(
                case="VGG16, 8 hosts, 50 Gbit/s: scheduled over fifo",
                ours=gained,
                paper=None,
                unit="%",
                why=f"The first layer's sum is back {back_s['scheduled'] * 1e3:.1f} ms after its gradient instead of "
                f"{back_s['fifo'] * 1e3:.1f} ms.",
            ),
        ),
        charts=(
            Chart(
                name="gantt",
                finding=finding,
                caption="Each layer's backward, the way of its gradient (handed to the network until the sum is "
                "back), and its forward in the next step; simulated, parameter server, TCP.",
                figure=gantt(finding, charts, [layer.name for layer in task.layers]),
            ),
        ),
    )


RECIPES = (
    Recipe("bandwidth", "legato", "Where does scheduling help, and where does it lose?", _where),
    Recipe("stack", "legato", "What does scheduling hide?", _hidden),
    Recipe("gantt", "legato", "What does a step look like?", _order),
)
