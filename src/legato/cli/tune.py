"""`legato tune`: the best plan for a model on a cluster, offline; and the training of AutoByte's network."""

import json
import os
from dataclasses import replace
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
from legato.tuning.candidate import BASELINE, C10D, NATIVE, TRANSPORTS, Candidate, Space
from legato.tuning.search import simulated_s
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
    latency: Latency = "20us",
    overhead: Overhead = "20us",
    batch: Batch = None,
    tflops: Tflops = DEFAULT_TFLOPS,
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
    space = Space(transports=TRANSPORTS if transport == "any" else (transport,))
    seconds = {each: simulated_s(task, cluster, each, MAX_PARTS) for each in (*space, BASELINE)}
    if as_json:
        rows = [
            {
                "transport": each.transport,
                "policy": each.policy,
                "partition_bytes": each.partition_bytes,
                "credit_bytes": each.credit_bytes,
                "iteration_s": seconds[each],
            }
            for each in sorted(seconds, key=seconds.__getitem__)
        ]
        print(json.dumps(rows, indent=1))
        return
    console = Console()
    best = min(seconds, key=seconds.__getitem__)
    console.print(
        f"{task.name} on {workers} workers, {cluster.gbps:g} Gbit/s: {_words(best)}, "
        f"{seconds[best] * 1e3:.1f} ms a step, {seconds[BASELINE] / seconds[best] - 1:.1%} faster than "
        f"{BASELINE.policy} ({seconds[BASELINE] * 1e3:.1f} ms)"
    )
    for other in space.transports:
        if other != best.transport:
            plan = min((each for each in space if each.transport == other), key=seconds.__getitem__)
            slower = seconds[plan] / seconds[best] - 1
            console.print(f"the best over {other}: {_words(plan)}, {seconds[plan] * 1e3:.1f} ms ({slower:+.1%})")
    shown = best if best != BASELINE else space.start
    for policy in space.policies:
        console.print(_map(replace(shown, policy=policy), space, seconds, seconds[best]))


def _words(candidate: Candidate) -> str:
    if candidate.partition_bytes is None or candidate.credit_bytes is None:
        return str(candidate)
    return (
        f"{candidate.policy} over {candidate.transport}, partition {format_bytes(candidate.partition_bytes)}, "
        f"credit {candidate.credit_bytes // candidate.partition_bytes}×"
    )


def _map(shown: Candidate, space: Space, seconds: dict[Candidate, float], best_s: float) -> Table:
    """Milliseconds a step by partition and credit, of one transport and policy; the greener, the nearer to the best."""
    title = f"{replace(shown, partition_bytes=None)}: ms a step"
    table = Table(title=title, caption="rows: partition; columns: credit in parts")
    table.add_column("", justify="right", no_wrap=True)
    for parts in space.credit_parts:
        table.add_column(f"{parts}×", justify="right", no_wrap=True)
    for partition_bytes in space.partition_bytes:
        cells = []
        for parts in space.credit_parts:
            candidate = replace(shown, partition_bytes=partition_bytes, credit_bytes=parts * partition_bytes)
            slower = seconds[candidate] / best_s - 1
            # Green at the best, through yellow at 10 %, to red from 20 % on.
            red, green = min(1.0, slower / 0.1), min(1.0, max(0.0, 2 - slower / 0.1))
            style = f"rgb({int(200 * red)},{int(180 * green)},40)" + (
                " reverse bold" if seconds[candidate] == best_s else ""
            )
            cells.append(Text(f"{seconds[candidate] * 1e3:.1f}", style=style))
        table.add_row(format_bytes(partition_bytes), *cells)
    return table


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
        from legato.tuning.train import WEIGHTS, Recipe
        from legato.tuning.train import train as run
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
        from legato.tuning.refine import read_measured, refine_weights
    except ImportError:
        raise InputError("fine-tuning needs torch: pip install 'legato[tune]'") from None
    report = refine_weights(folder, read_measured(plans), processes=processes or os.cpu_count() or 1)
    print(json.dumps(report, indent=1))
