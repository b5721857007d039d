"""TensorFlow on the testbed: MultiWorkerMirroredStrategy and legato's `schedule` side by side, in turns.

python -m bench.tensorflow_testbed --gbps 1 --out tensorflow.jsonl

    alone        no communication
    mwms         tf.distribute.MultiWorkerMirroredStrategy as it comes: a ring over gRPC, all gradients in one tensor
    mwms:2MB     the same with packs of so many bytes (CommunicationOptions), which overlap with backward
    legato       legato.tensorflow.schedule as docs/tensorflow.md shows it; legato:fifo with that policy

Computation sleeps in the graph (bench/tensorflow_systems.py). Models are scaled to `--bytes`, and their computation so
that communication takes `--ratio` times as long. T* counts with the computation measured alone and with the goodput of
raw TCP between the hosts, both in the same run.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path

from bench.grid.cell import Cell
from bench.grid.environment import environment
from bench.grid.measure import shortest_s
from bench.tensorflow_worker import Assignment, Seen, take_turns
from bench.testbed import crew, goodput
from bench.testbed.launch import PORT, Launch
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.units import parse_bytes

ALONE = "alone"
"""Always measured: T* is made of it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system on one model."""

    model: str
    system: str
    hosts: int
    gbps: float
    goodput_gbps: float
    num_bytes: int
    """Gradients of a step."""
    steps_s: list[float]
    """Of the slowest worker."""
    step_s: float
    """Their median."""
    bound_s: float
    """T*."""
    ratio: float
    """Step over T*."""
    cpu_s: float
    """Processor time of one worker for a step."""
    environment: dict[str, str]

    def __str__(self) -> str:
        return (
            f"{self.model:10} {self.gbps:g} Gbit/s  {self.system:12} {self.step_s * 1e3:8.1f} ms a step  "
            f"{self.ratio:6.3f} T*  {self.cpu_s * 1e3:7.1f} ms of processors"
        )


def main() -> None:
    options = _arguments()
    systems = [ALONE, *options.systems]
    package = packages_distributions()["tensorflow"][0]  # tensorflow-cpu, or tensorflow on ARM
    where = {**environment(), "tensorflow": version(package)}
    with Testbed(hosts=options.hosts, gbps=options.gbps) as testbed:
        links = goodput.measure(testbed)
        cells = [_cell(model, options) for model in options.models]
        assignments = [
            _assignment(cell, number, systems, testbed, links.bytes_per_s) for number, cell in enumerate(cells)
        ]
        seen: dict[int, dict[str, list[Seen]]] = defaultdict(lambda: defaultdict(list))

        def hear(rank: int, told: tuple[int, str | Seen]) -> None:
            number, what = told
            if isinstance(what, Seen):
                seen[number][what.system].append(what)
            elif rank % options.hosts == 0:
                print(f"{cells[number].model}: {what} has had a turn", file=sys.stderr, flush=True)

        addresses = [testbed.address(host) for host in range(options.hosts)]
        places = list(range(options.hosts)) * len(systems)
        crew.follow(testbed, places, hear, take_turns, systems, addresses, assignments)
    rows = [
        row
        for number, cell in enumerate(cells)
        for row in _rows(cell, assignments[number].workload, links.bytes_per_s, seen[number], where)
    ]
    for row in rows:
        print(row)
    if options.out is not None:
        with options.out.open("a") as lines:
            lines.write("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vgg16", "resnet50"])
    parser.add_argument("--systems", nargs="+", default=["mwms", "mwms:2MB", "legato"])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--gbps", type=float, default=1.0)
    parser.add_argument("--ratio", type=float, default=1.0, help="communication over computation")
    parser.add_argument("--bytes", type=parse_bytes, default=50_000_000, help="scale models to at most this")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each system, after one that warms up")
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    parser.add_argument("--out", type=Path, help="append rows as JSON lines")
    return parser.parse_args()


def _cell(model: str, options: argparse.Namespace) -> Cell:
    return Cell(
        model=model,
        gbps=options.gbps,
        hosts=options.hosts,
        servers=0,
        systems=tuple(options.systems),
        rounds=options.rounds,
        steps=options.steps,
        communication_over_computation=options.ratio,
        at_most_gbps=options.gbps,
        at_most_bytes=options.bytes,
    )


def _assignment(cell: Cell, number: int, systems: Sequence[str], testbed: Testbed, bytes_per_s: float) -> Assignment:
    return Assignment(
        workload=cell.workload(bytes_per_s),
        launches=[
            Launch(num_workers=cell.hosts, conductor=testbed.address(0), port=PORT + number * len(systems) + place)
            for place in range(len(systems))
        ],
        num_rounds=cell.rounds,
        num_steps=cell.steps,
    )


def _rows(
    cell: Cell, workload: Workload, bytes_per_s: float, seen: dict[str, list[Seen]], where: dict[str, str]
) -> list[Row]:
    slowest = {
        system: [max(step) for step in zip(*(each.steps_s for each in workers), strict=True)]
        for system, workers in seen.items()
    }
    medians = {system: statistics.median(steps) for system, steps in slowest.items()}
    bound_s = shortest_s(workload, medians[ALONE], cell.cluster(bytes_per_s))
    return [
        Row(
            model=cell.model,
            system=system,
            hosts=cell.hosts,
            gbps=cell.gbps,
            goodput_gbps=bytes_per_s * 8e-9,
            num_bytes=workload.num_bytes,
            steps_s=slowest[system],
            step_s=medians[system],
            bound_s=bound_s,
            ratio=medians[system] / bound_s,
            cpu_s=statistics.median(each.cpu_s for each in seen[system]),
            environment=where,
        )
        for system in (ALONE, *cell.systems)
    ]


if __name__ == "__main__":
    main()
