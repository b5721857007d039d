"""Measures cells: the links first, then for each cell every system in turns."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from bench import crew, goodput
from bench.goodput import Goodput
from bench.grid.cell import Cell
from bench.grid.environment import environment
from bench.grid.lineup import ALONE, System, system
from bench.grid.plans import candidate
from bench.grid.row import Row, median_turns
from bench.grid.turns import Assignment, Seen, take_turns
from bench.job import PORT, Job
from bench.testbed import Testbed
from legato.core import Workload, bound
from legato.core.shards import Deployment
from legato.sim import Cluster
from legato.units import format_bytes

Heard = Callable[[str], None]
"""What is done when a system has had a turn."""
Finished = Callable[[Cell, list[Row]], None]
"""What is done with a cell that has been measured."""

_ENVIRONMENT = {
    # For all systems: otherwise glibc returns every gradient to the kernel, and the next faults its pages in again.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "GLOO_SOCKET_IFNAME": "eth0",
    # Hosts have no name service, of which torch warns from C++ as soon as a worker imports it.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def measure(cells: Sequence[Cell], hear: Heard, finish: Finished) -> None:
    """Measure cells that differ in their model alone, on the same hosts and by the same processes."""
    first = cells[0]
    with Testbed(hosts=first.hosts, servers=first.servers, gbps=first.line_gbps) as testbed, _environ(_ENVIRONMENT):
        links = goodput.measure(testbed)
        assignments = [_assignment(cell, number, testbed, links) for number, cell in enumerate(cells)]
        where = environment()
        seen: list[list[list[Seen]]] = [[] for _ in cells]

        def heard(rank: int, told: str | tuple[int, list[Seen]]) -> None:
            if isinstance(told, str):
                if rank == 0:
                    hear(told)
                return
            number, by_system = told
            seen[number].append(by_system)
            if len(seen[number]) == first.hosts:
                finish(cells[number], _rows(cells[number], assignments[number], links, seen[number], where))

        with ExitStack() as serving:
            for job in (job for assignment in assignments for job in assignment.jobs):
                serving.enter_context(job.served(testbed))
            crew.follow(testbed, range(first.hosts), heard, take_turns, assignments)


def _assignment(cell: Cell, number: int, testbed: Testbed, links: Goodput) -> Assignment:
    systems = [System(name=ALONE, family=ALONE), *map(system, cell.systems)]
    workload = cell.workload(links.bytes_per_s)
    return Assignment(
        systems=systems,
        jobs=[
            Job(
                deployment=Deployment(num_workers=cell.hosts, num_servers=cell.servers if each.uses_servers else 0),
                conductor=testbed.address(0),
                port=PORT + number * len(systems) + place,
                partition_bytes=plan.partition_bytes,
                credit_bytes=plan.credit_bytes,
                join_timeout_s=3600.0,  # servers wait from the start until their system has its first turn
            )
            for place, each in enumerate(systems)
            for plan in [candidate(each, cell, workload, links.bytes_per_s)]
        ],
        workload=workload,
        num_workers=cell.hosts,
        address=testbed.address(0),
        num_rounds=cell.rounds,
        num_steps=cell.steps,
    )


def _rows(
    cell: Cell, assignment: Assignment, links: Goodput, ranks: Sequence[Sequence[Seen]], where: dict[str, str]
) -> list[Row]:
    """A row for each system and one for training alone."""
    alone_s = _step_s([rank[0] for rank in ranks])
    return [
        Row(
            cell=cell.key(),
            system=each.name,
            step_s=_step_s(seen),
            turns_s=median_turns([rank.turns_s for rank in seen]),
            bound_s=shortest_s(
                assignment.workload, alone_s, cell.cluster(links.bytes_per_s, with_servers=each.uses_servers)
            ),
            alone_s=alone_s,
            num_bytes=assignment.workload.num_bytes,
            scale=cell.scale,
            shorten=cell.shorten,
            goodput_gbps=links.bytes_per_s * 8e-9,
            all_to_all_gbps=links.all_to_all * 8e-9,
            cpu_s=statistics.median(second for rank in seen for second in rank.cpu_s),
            peak_bytes=max(rank.peak_bytes for rank in seen),
            chosen=seen[0].chosen or _words(job),
            environment=where,
        )
        for each, job, seen in zip(assignment.systems, assignment.jobs, zip(*ranks, strict=True), strict=True)
    ]


def shortest_s(workload: Workload, alone_s: float, cluster: Cluster) -> float:
    """T*, with computation stretched to what was measured alone."""
    task = workload.scaled(time_by=alone_s / workload.compute_s)
    return bound(
        [layer.forward_s for layer in task.layers],
        [layer.backward_s for layer in task.layers],
        [layer.num_bytes * cluster.seconds_per_byte for layer in task.layers],
    )


def _step_s(ranks: Sequence[Seen]) -> float:
    return statistics.median(second for rank in ranks for turn in rank.turns_s for second in turn)


def _words(job: Job) -> str:
    """Its plan."""
    if job.partition_bytes is None:
        return ""
    parts = f"{format_bytes(job.partition_bytes)} parts"
    return parts if job.credit_bytes is None else f"{parts}, {format_bytes(job.credit_bytes)} of credit"


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    """Set for the processes that are started in here."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
