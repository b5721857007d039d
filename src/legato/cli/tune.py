"""`legato tune`: the best plan for a model on a cluster, offline; and the training of AutoByte's network."""

import json
import os
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from legato.cli.options import (
    Batch,
    Gbps,
    Latency,
    Overhead,
    Placement,
    Servers,
    Tflops,
    Workers,
    read_cluster,
    read_workload,
)
from legato.errors import InputError
from legato.sim import Architecture
from legato.sim.zoo import DEFAULT_TFLOPS, ZOO
from legato.tuning.candidate import C10D, NATIVE, TRANSPORTS, Candidate, Space
from legato.tuning.twin.search import simulated_s
from legato.tuning.twin.transports import BASELINES, SPACES
from legato.units import format_bytes

MAX_PARTS = 1000
"""Finer plans are simulated coarser, so that the whole map takes a few seconds."""


class _PlanUnlessNamed(TyperGroup):
    """`legato tune vgg16` is `legato tune plan vgg16`: what is no command is a model."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        if args and args[0] not in (*self.commands, "--help"):
            args = ["plan", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(name="tune", cls=_PlanUnlessNamed, no_args_is_help=True)


@app.callback()
def _tune() -> None:
    """Find the best plan for a model on a cluster: `legato tune MODEL`. Or train the tuner's network."""


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help=f"{', '.join(ZOO)}; or a workload's JSON file")],
    *,
    workers: Workers = 8,
    gbps: Gbps = "10",
    transport: Annotated[str, typer.Option(help=f"{', '.join(TRANSPORTS)}, or any")] = "any",
    servers: Servers = 0,
    deployment: Placement = None,
    latency: Latency = "0",
    overhead: Overhead = "0",
    batch: Batch = None,
    tflops: Tflops = DEFAULT_TFLOPS,
    out: Annotated[Path | None, typer.Option(help="write the best plan to this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """The best plan, the predicted speed of its neighbours, and a map of the plan space."""
    if transport not in (*TRANSPORTS, "any"):
        raise InputError(f"--transport {transport!r} is unknown; accepted: {', '.join(TRANSPORTS)}, any")
    if servers and transport == C10D:
        raise InputError(f"--transport {C10D} has no servers; use --transport {NATIVE} or any")
    cluster = read_cluster(
        workers=workers,
        gbps=gbps,
        arch=Architecture.PS.value,
        servers=servers,
        deployment=deployment,
        latency=latency,
        overhead=overhead,
    )
    task = read_workload(model, batch, tflops)
    spaces = [space for name, space in SPACES.items() if transport in (name, "any")]
    baselines = [each for name, each in BASELINES.items() if transport in (name, "any")]
    seconds = {each: simulated_s(task, cluster, each, MAX_PARTS) for each in chain(baselines, *spaces)}
    best, baseline = (min(each, key=seconds.__getitem__) for each in (seconds, baselines))
    if out is not None:
        chosen = best.in_engine() if best.transport == NATIVE else best
        out.write_text(chosen.plan(task.tensors).to_json() + "\n")
    if as_json:
        ordered = sorted(seconds, key=seconds.__getitem__)
        print(json.dumps([{**asdict(each), "iteration_s": seconds[each]} for each in ordered], indent=1))
        return
    console = Console()
    console.print(
        f"{task.name} on {workers} workers, {cluster.gbps:g} Gbit/s: {_words(best)}, "
        f"{seconds[best] * 1e3:.1f} ms a step, {seconds[baseline] / seconds[best] - 1:.1%} faster than "
        f"{_words(baseline)} ({seconds[baseline] * 1e3:.1f} ms)"
    )
    for space in spaces:
        plan = min(space, key=seconds.__getitem__)
        if plan != best:
            slower = seconds[plan] / seconds[best] - 1
            console.print(
                f"the best over {plan.transport}: {_words(plan)}, {seconds[plan] * 1e3:.1f} ms ({slower:+.1%})"
            )
    for space in spaces:
        console.print(_map(space, seconds, seconds[best]))
    if out is not None:
        console.print(f"the plan for {len(task.tensors)} tensors is in {out}")


def _words(candidate: Candidate) -> str:
    if candidate.partition_bytes is None or candidate.credit_bytes is None:
        return str(candidate)
    return (
        f"{candidate.policy} over {candidate.transport}, partition {format_bytes(candidate.partition_bytes)}, "
        f"credit {candidate.credit_bytes // candidate.partition_bytes}×"
    )


def _map(space: Space, seconds: dict[Candidate, float], best_s: float) -> Table:
    """Milliseconds a step by partition and policy, of one transport; the greener, the nearer to the best."""
    table = Table(title=f"over {space.transports[0]}: ms a step")
    table.add_column("partition", justify="right", no_wrap=True)
    for policy in space.policies:
        table.add_column(policy, justify="right", no_wrap=True)
    for partition in range(len(space.partition_bytes)):
        cells = [_cell(seconds[space.at(policy, partition, 0)], best_s) for policy in range(len(space.policies))]
        table.add_row(format_bytes(space.partition_bytes[partition]), *cells)
    return table


def _cell(step_s: float, best_s: float) -> Text:
    slower = step_s / best_s - 1
    # Green at the best, through yellow at 10 %, to red from 20 % on.
    red, green = min(1.0, slower / 0.1), min(1.0, max(0.0, 2 - slower / 0.1))
    style = f"rgb({int(200 * red)},{int(180 * green)},40)" + (" reverse bold" if step_s == best_s else "")
    return Text(f"{step_s * 1e3:.1f}", style=style)


@app.command()
def train(
    folder: Annotated[Path, typer.Argument(help="where samples, checkpoints, weights and the report are left")],
    *,
    samples: Annotated[int, typer.Option(help="samples from the simulator")] = 400_000,
    epochs: Annotated[int, typer.Option(help="passes over them")] = 80,
    seed: Annotated[int, typer.Option(help="of samples and weights")] = 0,
    processes: Annotated[int | None, typer.Option(help="that simulate; default: one per core")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda where there is one")] = None,
) -> None:
    """Train AutoByte's meta-network from the simulator."""
    try:
        from legato.tuning.autobyte.train import WEIGHTS, Recipe
        from legato.tuning.autobyte.train import train as run
    except ImportError:
        raise InputError("training needs torch: pip install 'legato[tune]'") from None
    report = run(
        folder,
        Recipe(samples=samples, epochs=epochs, seed=seed),
        processes=processes or os.cpu_count() or 1,
        device=device,
        progress=Console(stderr=True).print,
    )
    print(json.dumps(report, indent=1))
    print(f"weights: {folder / WEIGHTS}")


@app.command()
def refine(
    folder: Annotated[Path, typer.Argument(help="where `legato tune train` has left weights and report")],
    plans: Annotated[Path, typer.Argument(help="plans measured on a testbed, by `python -m bench.plans`")],
    *,
    processes: Annotated[int | None, typer.Option(help="that simulate; default: one per core")] = None,
) -> None:
    """Fine-tune AutoByte's meta-network with what a testbed has measured."""
    try:
        from legato.tuning.autobyte.refine import read_measured, refine_weights
    except ImportError:
        raise InputError("fine-tuning needs torch: pip install 'legato[tune]'") from None
    report = refine_weights(folder, read_measured(plans), processes=processes or os.cpu_count() or 1)
    print(json.dumps(report, indent=1))
