"""What the first steps of a job take, as a user starts it: `python -m bench.first_steps [--out FILE] [--steps 200]`.

Emulated models through `schedule(model, optimizer)` with nothing else said, communication as long as computation. The
broadcast of the weights shows how fast the links are, the first plan goes by that, and the tuner looks for a better.
Steps 5 to 40 are held against T*; of the whole run, the log tells when plans have changed.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import legato.torch as lg
from bench.report import Figure, publish
from bench.sleeper import sleeping_model, step_times_s
from bench.testbed import crew, goodput
from bench.testbed.namespace import acquire_permission
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.sim.zoo import workload
from legato.testing.log import said

EARLY = slice(5, 41)
_PORT = 4800


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model on hosts behind links."""

    hosts: int
    gbps: float
    model: str
    num_bytes: int

    def emulated(self) -> Workload:
        """Its step computes for as long as it communicates."""
        shape = workload(self.model)
        compute_s = 2 * (self.hosts - 1) / self.hosts * self.num_bytes * 8e-9 / self.gbps
        return shape.scaled(bytes_by=self.num_bytes / shape.num_bytes, time_by=compute_s / shape.compute_s)


CELLS = (
    Cell(hosts=4, gbps=0.1, model="resnet50", num_bytes=5_000_000),
    Cell(hosts=8, gbps=0.5, model="vgg16", num_bytes=28_000_000),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rank has seen."""

    steps_s: list[float]
    log: list[str]


def train(station: crew.Station, address: str, cell: Cell, num_steps: int) -> Outcome:
    os.environ.update(crew.torchrun_environment(station.rank, cell.hosts, address, _PORT), LEGATO_KEY=crew.KEY)
    torch.set_num_threads(1)
    lg.init()
    model = sleeping_model(cell.emulated(), 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with said("legato.torch.tuning.live") as lines:
        lg.schedule(model, optimizer)
        lines.append(f"the first plan: parts of {lg.current_plan(model).largest_partition_bytes} bytes")
        steps_s = step_times_s(model, optimizer, num_steps)
    lg.shutdown()
    return Outcome(steps_s=steps_s, log=lines)


def measure(cell: Cell, num_steps: int) -> Iterator[Figure]:
    emulated = cell.emulated()
    with Testbed(hosts=cell.hosts, gbps=cell.gbps) as testbed:
        bytes_per_s = goodput.measure(testbed).bytes_per_s
        ranks = crew.run(testbed, range(cell.hosts), train, testbed.address(0), cell, num_steps)
    on_wire = 2 * (cell.hosts - 1) / cell.hosts / bytes_per_s
    bound_s = emulated.bound_s(on_wire)
    steps_s = [max(each) for each in zip(*(rank.steps_s for rank in ranks), strict=True)]
    early_s = steps_s[EARLY]
    yield Figure(
        section="first steps",
        case=f"{cell.hosts} × {cell.gbps:g} Gbit/s, {cell.model}, {cell.num_bytes / 1e6:g} MB: steps 5 to 40 over T*",
        value=statistics.mean(early_s) / bound_s,
        unit="",
        at_most=1.05,
        details={
            "median": statistics.median(early_s) / bound_s,
            "last 50": statistics.median(steps_s[-50:]) / bound_s,
            "t_star_ms": bound_s * 1e3,
            "steps": " ".join(f"{each / bound_s:.2f}" for each in steps_s[:60]),
            "log": "; ".join(ranks[0].log),
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.first_steps", description=__doc__)
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cells", type=int, nargs="+", default=list(range(len(CELLS))), help="which, from 0 on")
    arguments = parser.parse_args(argv)
    acquire_permission()
    cells = [CELLS[place] for place in arguments.cells]
    return publish((figure for cell in cells for figure in measure(cell, arguments.steps)), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
