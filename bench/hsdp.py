"""Hybrid sharding on the testbed: torch's own over Gloo and legato across hosts, side by side and with T*.

python -m bench.hsdp --models gpt2 bert-large --out hsdp.jsonl

Each host has several ranks, over which `fully_shard` spreads every block of a model; they talk over the host's
loopback. Blocks sleep for as long as they would compute (bench/sleeper.py), gradients and weights are real. A process
for each rank trains by every system in turns:

    alone          inside each host only: what a step takes without the network
    torch          its own hybrid sharding, over a mesh of hosts × ranks
    legato:wfbp    legato across hosts, which overlaps with the backward pass alone: torch's, on the CPU, overlaps with
                   nothing, because Gloo's all-reduce holds up the thread that trains
    legato         legato across hosts

T* counts the bytes that the link of a host carries and the steps measured alone. Weights are checked in the end: every
rank's are those that all systems must come to, exactly.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import legato.torch as lg
from bench.grid.cell import Cell
from bench.grid.environment import environment
from bench.grid.measure import shortest_s
from bench.grid.row import median_turns
from bench.grid.systems import TIMEOUT_S, Place, Trainer
from bench.testbed import crew, goodput
from bench.testbed.crew import Station
from bench.testbed.launch import PORT, Launch
from bench.testbed.namespace import acquire_permission
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed
from legato.core import Layer, Workload

SYSTEMS = ("alone", "torch", "legato:wfbp", "legato")
_PORT = 4400


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, and what to do with it."""

    workload: Workload
    launches: Sequence[Launch]
    """A job for each system."""
    num_rounds: int
    num_steps: int
    """In a turn."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank has seen of one system."""

    turns_s: list[list[float]] = field(default_factory=list)
    """Seconds of each step, turn by turn."""
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of a step, all threads of this process; one figure a turn."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system on one model; seconds are medians over steps and ranks."""

    model: str
    gbps: float
    hosts: int
    ranks: int
    """On each host."""
    ratio: float
    """Communication over what a step takes alone: more happens there than blocks that sleep."""
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
    cpu_s: float
    """Processor time of one rank for a step."""
    goodput_gbps: float
    """Of raw TCP through the links: what T* counts with."""
    environment: dict[str, str]


class Sharded(Trainer):
    """One rank of a model that is spread over a mesh, block by block."""

    def __init__(self, place: Place, workload: Workload, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        super().__init__(place, workload)

    def _rebuild(self) -> None:
        super()._rebuild()
        for block in self.model.children():
            if any(True for _ in block.parameters()):
                # Gathered once a step, not twice: what happens inside a host costs all systems alike.
                fully_shard(block, mesh=self._mesh, reshard_after_forward=False)
        fully_shard(self.model, mesh=self._mesh, reshard_after_forward=False)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)

    def check(self) -> None:
        """Every step went down by the average of the ranks in the mesh, everywhere and to the bit."""
        average = statistics.mean(rank + 1.0 for rank in self._averaged())
        expected = torch.tensor(-average * self._num_steps)
        for name, weight in self.model.named_parameters():
            assert isinstance(weight, nn.Parameter)
            if not torch.all(weight.to_local() == expected):  # type: ignore[attr-defined]
                raise AssertionError(f"the weights {name} of rank {self.place.rank} are wrong after training")

    def _averaged(self) -> Sequence[int]:
        return [int(rank) for rank in self._mesh.mesh.flatten()]


class Legato(Sharded):
    """The same over the mesh of a host, averaged across hosts by legato."""

    def __init__(self, place: Place, workload: Workload, mesh: DeviceMesh, policy: str) -> None:
        super().__init__(place, workload, mesh)
        self._job = place.launch.job(place.rank)
        lg.schedule(self.model, self._optimizer, policy=policy, tuner="off", job=self._job)

    def flush(self) -> None:
        lg.flush(self.model)

    def close(self) -> None:
        self._job.close()

    def _averaged(self) -> Sequence[int]:
        return range(self.place.launch.num_workers)


def work(station: Station, address: str, hosts: int, tasks: Sequence[Task]) -> list[list[Seen]]:
    """One rank; what it has seen of each system, task by task."""
    torch.set_num_threads(1)
    num_ranks = tasks[0].launches[0].num_workers
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:{_PORT}",
        rank=station.rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    mesh = init_device_mesh("cpu", (hosts, num_ranks // hosts), mesh_dim_names=("replicate", "shard"))
    seen = [_fulfil(station, task, mesh) for task in tasks]
    station.meet()
    dist.destroy_process_group()
    return seen


def _fulfil(station: Station, task: Task, mesh: DeviceMesh) -> list[Seen]:
    trainers: list[Sharded] = []
    for system, launch in zip(SYSTEMS, task.launches, strict=True):
        station.meet()
        place = Place(rank=station.rank, launch=launch)
        if system.startswith("legato"):
            policy = system.partition(":")[2] or "auto"
            trainers.append(Legato(place, task.workload, mesh["shard"], policy))
        else:
            trainers.append(Sharded(place, task.workload, mesh if system == "torch" else mesh["shard"]))
        trainers[-1].turn(trainers[-1].warm_up_steps)
    seen = [Seen() for _ in trainers]
    for number in range(task.num_rounds):
        for trainer, figures in zip(trainers, seen, strict=True):
            station.meet()
            begin_s = time.process_time()
            figures.turns_s.append(trainer.turn(task.num_steps))
            figures.cpu_s.append((time.process_time() - begin_s) / (task.num_steps + 1))
        station.tell(f"{task.workload.name}: round {number + 1} of {task.num_rounds}")
    for trainer in trainers:
        trainer.check()
        trainer.close()
    return seen


def blocks(workload: Workload) -> Workload:
    """The same with the layers of a block as one, as users give them to `fully_shard`: `h0` of `h0.mlp.up`."""
    found = []
    for name, group in groupby(workload.layers, lambda layer: layer.name.partition(".")[0]):
        layers = list(group)
        found.append(
            Layer(
                name,
                num_bytes=sum(layer.num_bytes for layer in layers),
                forward_s=sum(layer.forward_s for layer in layers),
                backward_s=sum(layer.backward_s for layer in layers),
            )
        )
    return Workload(workload.name, tuple(found))


def main() -> None:
    options = _arguments()
    acquire_permission()
    rows = _measure(options)
    if options.out is not None:
        with options.out.open("a") as lines:
            lines.writelines(json.dumps(asdict(row)) + "\n" for row in rows)
    print(_table(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["gpt2", "bert-large"])
    # FSDP takes each of four ranks some 150 ms of a processor for a step: a step is long enough for two of them.
    parser.add_argument("--gbps", type=float, default=0.5)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--ratio", type=float, default=1.0, help="communication over blocks that sleep")
    parser.add_argument("--megabytes", type=float, default=60.0, help="of gradients a step, at most; models are scaled")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each system")
    parser.add_argument("--steps", type=int, default=3, help="measured in a turn, after one that is not")
    parser.add_argument("--out", type=Path, help="append rows as JSON lines")
    return parser.parse_args()


def _cell(model: str, options: argparse.Namespace) -> Cell:
    return Cell(
        model=model,
        gbps=options.gbps,
        hosts=options.hosts,
        servers=0,
        systems=SYSTEMS[1:],
        rounds=options.rounds,
        steps=options.steps,
        communication_over_computation=options.ratio,
        at_most_gbps=options.gbps,
        at_most_bytes=round(options.megabytes * 1e6),
    )


def _measure(options: argparse.Namespace) -> list[Row]:
    """Models on the same hosts, one after the other in the same processes."""
    cells = [_cell(model, options) for model in options.models]
    num_ranks = options.hosts * options.ranks
    with Testbed(hosts=options.hosts, gbps=options.gbps) as testbed, surroundings():
        links = goodput.measure(testbed)
        tasks = [
            Task(
                workload=blocks(cell.workload(links.bytes_per_s)),
                launches=[
                    Launch(
                        num_workers=num_ranks,
                        conductor=testbed.address(0),
                        port=PORT + number * len(SYSTEMS) + place,
                    )
                    for place in range(len(SYSTEMS))
                ],
                num_rounds=cell.rounds,
                num_steps=cell.steps,
            )
            for number, cell in enumerate(cells)
        ]

        def hear(rank: int, told: str) -> None:
            if rank == 0:
                print(told, flush=True)

        places = [host for host in range(options.hosts) for _ in range(options.ranks)]
        seen = crew.follow(testbed, places, hear, work, testbed.address(0), options.hosts, tasks)
    where = environment()
    return [
        row
        for cell, task, of_ranks in zip(cells, tasks, zip(*seen, strict=True), strict=True)
        for row in _rows(cell, task, options, links.bytes_per_s, of_ranks, where)
    ]


def _rows(
    cell: Cell,
    task: Task,
    options: argparse.Namespace,
    bytes_per_s: float,
    ranks: Sequence[Sequence[Seen]],
    where: dict[str, str],
) -> list[Row]:
    alone_s = _step_s([rank[0] for rank in ranks])
    communication_s = task.workload.num_bytes * cell.cluster(bytes_per_s).seconds_per_byte
    bound_s = shortest_s(task.workload, alone_s, cell.cluster(bytes_per_s))
    return [
        Row(
            model=cell.model,
            gbps=cell.gbps,
            hosts=cell.hosts,
            ranks=options.ranks,
            ratio=communication_s / alone_s,
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
        for system, seen in zip(SYSTEMS, zip(*ranks, strict=True), strict=True)
    ]


def _step_s(ranks: Sequence[Seen]) -> float:
    return statistics.median(second for rank in ranks for turn in rank.turns_s for second in turn)


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | communication / alone | system | step | of T* | turns | processor |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        turns = f"{min(row.turns_s) / row.bound_s:.2f}–{max(row.turns_s) / row.bound_s:.2f}"
        lines.append(
            f"| {row.model} | {row.ratio:.2f} | {row.system} | {row.step_s * 1e3:.0f} ms | {row.of_bound:.2f} | "
            f"{turns} | {row.cpu_s * 1e3:.0f} ms |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
