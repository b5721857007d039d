"""P3 (SysML'19): slices by priority over a parameter server, against MXNet's own implementation as measured."""

from bench.study.figures import Axes, bars
from bench.study.recipe import Chart, Findings, Recipe, Row, gain
from bench.study.runs import Runs
from bench.study.settings import TCP, TITLES, baseline
from legato.core.policies import P3
from legato.sim import Cluster
from legato.sim.zoo import workload

MEASURED = {"vgg16": (1.44, 1.26), "resnet50": (1.51, 1.43), "bert-large": (1.42, 1.33)}
"""A step over T* with `dist_sync` and with P3: MXNet 1.9.1 on 4 hosts × 1 Gbit/s."""
CLUSTER = Cluster(workers=4, gbps=1, **TCP)


def _compare(runs: Runs) -> Findings:
    rows = []
    above: dict[str, list[float]] = {
        name: [] for name in ("fifo, simulated", "dist_sync, measured", "P3, simulated", "P3, measured")
    }
    for model, (plain, sliced) in MEASURED.items():
        task = workload(model)
        task = task.scaled(time_by=task.num_bytes * CLUSTER.seconds_per_byte / task.compute_s)
        fifo = runs.run(task, CLUSTER, baseline(task, CLUSTER))
        p3 = runs.run(task, CLUSTER, P3().plan(task.tensors))
        for name, ratio in zip(above, (fifo.ratio, plain, p3.ratio, sliced), strict=True):
            above[name].append((ratio - 1) * 100)
        rows.append(
            Row(
                case=f"{TITLES[model]}: P3 over a parameter server without it",
                ours=gain(fifo.iteration_s, p3.iteration_s),
                paper=gain(plain, sliced),
                unit="%",
                why=f"Over T*, {fifo.ratio:.2f} and {p3.ratio:.2f} here, {plain:.2f} and {sliced:.2f} measured: what "
                "MXNet's processors spend on copies, sums and locks is not in the model.",
            )
        )
    least, most = (choose(row.ours for row in rows) for choose in (min, max))
    finding = f"P3 gains {least:.0f} to {most:.0f} % in the simulator, and gains on real hosts too, though less"
    return Findings(
        rows=tuple(rows),
        charts=(
            Chart(
                name="p3",
                finding=finding,
                caption="How far a step is above the bound T*; 4 hosts × 1 Gbit/s, joint parameter server, TCP's "
                "costs, communication as long as computation. Measured: MXNet 1.9.1.",
                figure=bars(
                    finding, [TITLES[model] for model in MEASURED], above, Axes(x="", y="step above T*, %"), ""
                ),
            ),
        ),
    )


RECIPES = (Recipe("p3", "P3 (SysML'19)", "What do small slices by priority gain?", _compare),)
