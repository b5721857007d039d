"""Exposed communication, as the report tells it and as the benchmark does: `python -m bench.exposed [--out FILE]`.

The same steps, twice: the models of the headline on its four hosts (layers that sleep, real gradients), by legato over
its own engine and over Gloo. The benchmark takes the time of a step less that of a step alone, by the clock of the
training loop; the report takes what `legato trace report` says of a timeline of these steps, which knows nothing of
steps alone.

A rank that has no processor computes for longer, which the benchmark counts as communication and a timeline as
computation. Two cores stand for four hosts here: so links and models are a quarter of the headline's, and hosts have
real-time priority, where the user may give it, over all else that the machine does.

    alone  │  warm-up  │ one step │ measured, and on the timeline │  alone
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

import legato.torch as lg
from bench.grid import recipe
from bench.grid.calls import Call, call
from bench.grid.cell import Cell
from bench.grid.lineup import system
from bench.grid.systems import TIMEOUT_S, Alone, Legato, Place
from bench.report import Figure, publish
from bench.testbed import crew, goodput
from bench.testbed.launch import PORT, Launch
from bench.testbed.namespace import acquire_permission
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.observe.report import Analysis, analyse, read

SYSTEMS = ("legato", "c10d")
LINE_GBPS = 0.25
NUM_BYTES = 20_000_000
NUM_STEPS = 8
AT_MOST_PERCENT = 5.0
_PORT = 4400
_PRIORITY = 10


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One training run."""

    launch: Launch
    asked: Call
    workload: Workload
    num_steps: int
    timeline: Path


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank's clock says: seconds of each step."""

    alone_s: list[float]
    steps_s: list[float]


def train(station: crew.Station, address: str, assignments: Sequence[Assignment]) -> list[Seen]:
    """One rank of every run."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:{_PORT}",
        rank=station.rank,
        world_size=assignments[0].launch.num_workers,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    seen = [_train(station, assignment) for assignment in assignments]
    dist.destroy_process_group()
    return seen


def _train(station: crew.Station, assignment: Assignment) -> Seen:
    place = Place(rank=station.rank, launch=assignment.launch)
    alone = Alone(place, assignment.workload)
    station.meet()
    alone_s = alone.turn(assignment.num_steps)
    trainer = Legato(place, assignment.workload, assignment.asked)
    trainer.turn(trainer.warm_up_steps)
    station.meet()
    lg.start_timeline(assignment.timeline, job=trainer.job)
    steps_s = trainer.turn(assignment.num_steps)
    lg.stop_timeline(job=trainer.job)
    station.meet()
    alone_s += alone.turn(assignment.num_steps)
    trainer.check()
    trainer.close()
    return Seen(alone_s=alone_s, steps_s=steps_s)


def measure(cells: Sequence[Cell], systems: Sequence[str], num_steps: int) -> Iterator[Figure]:
    """Cells that differ in their model alone."""
    first = cells[0]
    with (
        Testbed(hosts=first.hosts, gbps=first.line_gbps) as testbed,
        surroundings(),
        TemporaryDirectory(prefix="legato-") as folder,
    ):
        links = goodput.measure(testbed)
        cases = [(cell, name) for cell in cells for name in systems]
        assignments = []
        for place, (cell, name) in enumerate(cases):
            workload = cell.workload(links.bytes_per_s)
            asked = call(system(name), cell, workload, links.bytes_per_s)
            assert asked is not None
            assignments.append(
                Assignment(
                    launch=Launch(num_workers=cell.hosts, conductor=testbed.address(0), port=PORT + place),
                    asked=asked,
                    workload=workload,
                    num_steps=num_steps,
                    timeline=Path(folder) / f"{place}.json",
                )
            )
        ranks = crew.run(testbed, range(first.hosts), train, testbed.address(0), assignments)
        for (cell, name), assignment, seen in zip(cases, assignments, zip(*ranks, strict=True), strict=True):
            case = f"{cell.model}, {cell.hosts} × {cell.line_gbps:g} Gbit/s: {name}"
            yield figure(case, seen, analyse(read([assignment.timeline])))


def figure(case: str, ranks: Sequence[Seen], analysis: Analysis) -> Figure:
    """How far the two are apart, over the same steps."""
    summary = analysis.summary
    assert summary is not None
    first = min(step.number for step in analysis.whole_steps)
    step_s = mean(ranks[step.rank].steps_s[step.number - first] for step in analysis.usual_steps)
    alone_s = median(second for rank in ranks for second in rank.alone_s)
    benchmark_s = step_s - alone_s
    return Figure(
        section="exposed",
        case=f"{case}: the report's exposed communication is off by",
        value=abs(summary.exposed_s / benchmark_s - 1) * 100,
        unit="%",
        at_most=AT_MOST_PERCENT,
        details={
            "report ms": summary.exposed_s * 1e3,
            "benchmark ms": benchmark_s * 1e3,
            "step ms": step_s * 1e3,
            "alone ms": alone_s * 1e3,
            "step of the report ms": summary.step_s * 1e3,
            "compute of the report ms": summary.compute_s * 1e3,
            "idle of the report ms": summary.idle_s * 1e3,
            "steps": len(analysis.usual_steps),
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every target is met, 1 otherwise; 77 where hosts cannot be made."""
    headline = {cell.model: cell for cell in recipe.read("headline").cells()}
    parser = argparse.ArgumentParser(
        prog="python -m bench.exposed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=headline, default=list(headline), help="of the headline")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="that are measured (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    acquire_permission()
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))  # the hosts' processes inherit it
    cells = [replace(headline[model], at_most_gbps=LINE_GBPS, at_most_bytes=NUM_BYTES) for model in arguments.models]
    return publish(measure(cells, arguments.systems, arguments.steps), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
