"""The simulator against measurements: what it says of the runs in bench/results/, given their links and computation."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.grid.pages import measured_rows
from bench.grid.prediction import scene
from bench.grid.tables import scaling
from bench.study.figures import Axes, bars, panels
from bench.study.recipe import Chart, Findings, Recipe, Row, percent
from bench.study.runs import Runs
from bench.study.settings import TCP, TITLES, baseline, scheduled
from legato.core import Workload
from legato.sim import Architecture, Cluster
from legato.sim.zoo import workload

H200 = Path(__file__).resolve().parents[1] / "results" / "h200.jsonl"
Systems = Mapping[str, Mapping[str, Any]]
"""One model at one bandwidth: the rows of `alone`, `ddp` and `legato`."""


def _settings() -> list[Systems]:
    settings: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for line in H200.read_text().splitlines():
        row = json.loads(line)
        settings.setdefault((row["model"], row["gbps"]), {})[row["system"]] = row
    return list(settings.values())


def _task(alone: Mapping[str, Any]) -> Workload:
    """The zoo's shape with the bytes that were sent and the time that computation took without communication."""
    task = workload(alone["model"])
    return task.scaled(bytes_by=alone["num_bytes"] / task.num_bytes, time_by=alone["step_s"] / task.compute_s)


def _compare(runs: Runs) -> Findings:
    rows, names = [], []
    errors: dict[str, list[float]] = {"legato": [], "DDP over Gloo": []}
    for systems in _settings():
        alone = systems["alone"]
        task = _task(alone)
        joint = Cluster(workers=alone["workers"], gbps=alone["goodput_gbps"], **TCP)
        ring = Cluster(workers=alone["workers"], gbps=alone["goodput_gbps"], architecture=Architecture.ALLREDUCE, **TCP)
        legato_s = runs.best(task, joint, scheduled(task, joint)).iteration_s
        ddp_s = runs.run(task, ring, baseline(task, ring)).iteration_s
        errors["legato"].append((legato_s / systems["legato"]["step_s"] - 1) * 100)
        errors["DDP over Gloo"].append((ddp_s / systems["ddp"]["step_s"] - 1) * 100)
        names.append(f"{TITLES[alone['model']]}<br>{alone['gbps']:g}G")
        rows.append(
            Row(
                case=f"{TITLES[alone['model']]}, {alone['gbps']:g} Gbit/s: legato's step",
                ours=legato_s * 1e3,
                paper=systems["legato"]["step_s"] * 1e3,
                unit="ms",
                why=f"{percent(errors['legato'][-1])}, and {percent(errors['DDP over Gloo'][-1])} for DDP: what the "
                "hosts' processors spend on copies, sums and hooks is not in the model.",
            )
        )
    middle, worst = median(map(abs, errors["legato"])), max(map(abs, errors["legato"]))
    finding = (
        f"On an H200 legato's steps take as long as simulated within {middle:.0f} % in the median and {worst:.0f} % at "
        "worst; DDP over Gloo loses more than the links explain"
    )
    chart = Chart(
        name="measured",
        finding=finding,
        caption="Simulated over measured step time; 4 workers share one H200, links shaped to 25, 10 and 5 Gbit/s "
        "(bench/results/h200.jsonl). Bytes, goodput and computation are those of the run; an operation costs what it "
        "is taken to cost over TCP everywhere in this study.",
        figure=bars(finding, names, errors, Axes(x="", y="simulated over measured, %"), ""),
    )
    return Findings(rows=tuple(rows), charts=(chart,))


def _compare_testbed(runs: Runs) -> Findings:
    rows = []
    sizes = []
    charts: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for row in measured_rows():
        simulated_s = runs.run(*scene(row)).iteration_s
        error = (simulated_s / row.step_s - 1) * 100
        sizes.append(abs(error))
        model, gbps = TITLES[row.of.model], row.of.gbps
        is_balanced = row.of.communication_over_computation is not None
        if not is_balanced:
            points = charts.setdefault(model, {}).setdefault(row.system, ([], []))
            points[0].append(gbps)
            points[1].append(error)
        balance = ", balanced" if is_balanced else ""
        rows.append(
            Row(
                case=f"{model}, {gbps:g} Gbit/s{balance} (scaled: {scaling(row)}): a step of {row.system}",
                ours=simulated_s * 1e3,
                paper=row.step_s * 1e3,
                unit="ms",
                why=f"{percent(error, 1)}, where turns of the same run differ by ± {row.spread:.1%}; not modelled are "
                f"the processors that four hosts share, busy for {row.cpu_s * 1e3:.0f} ms with a worker's step.",
            )
        )
    finding = (
        f"On the testbed steps take as long as simulated within {median(sizes):.1f} % in the median and "
        f"{max(sizes):.1f} % at worst"
    )
    ticks = (0.5, 1, 5, 10, 25)
    axes = Axes(x="Gbit/s", y="simulated over measured, %", log_x=True, x_ticks=ticks, y_range=(-10, 10))
    chart = Chart(
        name="testbed",
        finding=finding,
        caption="Simulated over measured step time on 4 hosts in network namespaces (bench/results/grid.jsonl; the "
        "finding and the table count headline.jsonl, too). Bytes, goodput and computation are those of the run; what "
        "an operation costs is the same in all rows of a transport (bench/grid/prediction.py).",
        figure=panels(finding, charts, axes, columns=3),
    )
    return Findings(rows=tuple(rows), charts=(chart,))


RECIPES = (
    Recipe("measured", "legato on an H200", "How far is the simulator from what was measured?", _compare),
    Recipe("testbed", "legato and DDP on the testbed", "How far is the simulator from the testbed?", _compare_testbed),
)
