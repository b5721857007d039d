"""JAX on the testbed: its own Gloo collectives and legato.jax, side by side and with the shortest possible step.

python -m bench.jax_testbed --models vgg16 resnet50 --gbps 1 2 --out jax.jsonl

One process on each host trains by every system in turns. Computation sleeps (bench/jax_worker.py), scaled so that
communication takes `--ratio` times as long. T* counts the bytes that one link carries in each direction, 2(n−1)/n of
the model's, at the goodput measured between the hosts, and the computation measured alone (`legato.core.bound`).
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.grid.cell import Cell
from bench.grid.environment import environment
from bench.grid.measure import shortest_s
from bench.grid.row import median_turns
from bench.jax_worker import SYSTEMS, Seen, Task, compile_device, work
from bench.testbed import crew, goodput
from bench.testbed.launch import PORT, Launch
from bench.testbed.namespace import acquire_permission
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed

COORDINATOR_PORT = 4500
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # XLA's threads: a collective of Gloo's occupies one while it waits, which must not keep the others from working.
    "PJRT_NPROC": "8",
    "NPROC": "8",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system on one model at one rate; seconds are medians over steps and workers."""

    model: str
    gbps: float
    hosts: int
    ratio: float
    """Communication over computation, each by itself."""
    system: str
    num_bytes: int
    """Gradients of a step."""
    step_s: float
    turns_s: list[float]
    """The median of each turn: how far they are apart is the noise."""
    bound_s: float
    """T*."""
    of_bound: float
    """Step over T*."""
    alone_s: float
    """Computation without communication."""
    cpu_s: float
    """Processor time of one worker for a step."""
    goodput_gbps: float
    """Of raw TCP through the links: what T* counts with."""
    environment: dict[str, str]


def main() -> None:
    options = _arguments()
    acquire_permission()
    os.environ.update(ENVIRONMENT)
    rows: list[Row] = []
    for gbps in options.gbps:
        measured = _measure([_cell(model, gbps, options) for model in options.models], options.ratio)
        rows += measured
        if options.out is not None:
            with options.out.open("a") as lines:
                lines.writelines(json.dumps(asdict(row)) + "\n" for row in measured)
    print(_table(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vgg16", "resnet50"])
    parser.add_argument("--gbps", nargs="+", type=float, default=[1.0])
    parser.add_argument("--systems", nargs="+", choices=[name for name in SYSTEMS if name != "alone"])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ratio", type=float, default=1.0, help="communication over computation")
    parser.add_argument("--megabytes", type=float, default=40.0, help="of gradients a step, at most; models are scaled")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each system")
    parser.add_argument("--steps", type=int, default=4, help="measured in a turn, after one that is not")
    parser.add_argument("--out", type=Path, help="append rows as JSON lines")
    return parser.parse_args()


def _cell(model: str, gbps: float, options: argparse.Namespace) -> Cell:
    return Cell(
        model=model,
        gbps=gbps,
        hosts=options.hosts,
        servers=0,
        systems=tuple(options.systems or (name for name in SYSTEMS if name != "alone")),
        rounds=options.rounds,
        steps=options.steps,
        communication_over_computation=options.ratio,
        at_most_gbps=gbps,
        at_most_bytes=round(options.megabytes * 1e6),
    )


def _measure(cells: Sequence[Cell], ratio: float) -> list[Row]:
    """Models on the same hosts, one after the other in the same processes."""
    hosts, gbps = cells[0].hosts, cells[0].gbps
    with (
        tempfile.TemporaryDirectory() as directory,
        Testbed(hosts=hosts, gbps=gbps) as testbed,
        surroundings(),
    ):
        library = compile_device(Path(directory))
        links = goodput.measure(testbed)
        tasks = [
            Task(
                workload=cell.workload(links.bytes_per_s),
                systems=("alone", *cell.systems),
                launch=Launch(num_workers=hosts, conductor=testbed.address(0), port=PORT + number),
                num_rounds=cell.rounds,
                num_steps=cell.steps,
            )
            for number, cell in enumerate(cells)
        ]

        def hear(rank: int, number: Any) -> None:
            if rank == 0:
                print(f"{gbps:g} Gbit/s: round {number + 1} of {cells[0].rounds}", flush=True)

        addresses = [testbed.address(host) for host in range(hosts)]
        ranks = crew.follow(testbed, range(hosts), hear, work, addresses, COORDINATOR_PORT, str(library), tasks)
    where = {**environment(), "jax": version("jax")}
    return [
        row
        for cell, task, seen in zip(cells, tasks, zip(*ranks, strict=True), strict=True)
        for row in _rows(cell, task, ratio, links.bytes_per_s, seen, where)
    ]


def _rows(
    cell: Cell,
    task: Task,
    ratio: float,
    bytes_per_s: float,
    ranks: Sequence[Sequence[Seen]],
    where: dict[str, str],
) -> list[Row]:
    alone_s = _step_s([rank[0] for rank in ranks])
    bound_s = shortest_s(task.workload, alone_s, cell.cluster(bytes_per_s))
    return [
        Row(
            model=cell.model,
            gbps=cell.gbps,
            hosts=cell.hosts,
            ratio=ratio,
            system=system,
            num_bytes=task.workload.num_bytes,
            step_s=_step_s(seen),
            turns_s=median_turns([rank.turns_s for rank in seen]),
            bound_s=bound_s,
            of_bound=_step_s(seen) / bound_s,
            alone_s=alone_s,
            cpu_s=statistics.median(second for rank in seen for second in rank.cpu_s),
            goodput_gbps=bytes_per_s * 8e-9,
            environment=where,
        )
        for system, seen in zip(task.systems, zip(*ranks, strict=True), strict=True)
    ]


def _step_s(ranks: Sequence[Seen]) -> float:
    return statistics.median(second for rank in ranks for turn in rank.turns_s for second in turn)


def _table(rows: Sequence[Row]) -> str:
    lines = ["| model | Gbit/s | system | step | of T* | turns | processor |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        turns = f"{min(row.turns_s) / row.bound_s:.2f}–{max(row.turns_s) / row.bound_s:.2f}"
        lines.append(
            f"| {row.model} | {row.gbps:g} | {row.system} | {row.step_s * 1e3:.0f} ms | {row.of_bound:.2f} | {turns} | "
            f"{row.cpu_s * 1e3:.0f} ms |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
