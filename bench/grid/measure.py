"""Measures cells: the links first, then for each cell every system in turns."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.grid.calls import call
from bench.grid.cell import Cell
from bench.grid.environment import environment
from bench.grid.lineup import ALONE, System, system
from bench.grid.row import Row, median_turns
from bench.grid.turns import Assignment, Seen, take_turns
from bench.testbed import crew, goodput
from bench.testbed.goodput import Goodput
from bench.testbed.launch import PORT, Launch
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed
from legato.core import Workload
from legato.sim import Cluster

Heard = Callable[[str], None]
"""What is done when a system has had a turn."""
Finished = Callable[[Cell, list[Row]], None]
"""What is done with a cell that has been measured."""


def measure(cells: Sequence[Cell], hear: Heard, finish: Finished) -> None:
    """Measure cells that differ in their model alone, on the same hosts and by the same processes."""
    first = cells[0]
    with Testbed(hosts=first.hosts, servers=first.servers, gbps=first.line_gbps) as testbed, surroundings():
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
            for launch in (launch for assignment in assignments for launch in assignment.launches):
                serving.enter_context(launch.served(testbed))
            crew.follow(testbed, range(first.hosts), heard, take_turns, assignments)


def _assignment(cell: Cell, number: int, testbed: Testbed, links: Goodput) -> Assignment:
    systems = [System(name=ALONE, family=ALONE), *map(system, cell.systems)]
    workload = cell.workload(links.bytes_per_s)
    return Assignment(
        systems=systems,
        calls=[call(each, cell, workload, links.bytes_per_s) for each in systems],
        launches=[
            Launch(
                num_workers=cell.hosts,
                num_servers=cell.servers if each.uses_servers else 0,
                conductor=testbed.address(0),
                port=PORT + number * len(systems) + place,
                join_timeout_s=3600.0,  # servers wait from the start until their system has its first turn
            )
            for place, each in enumerate(systems)
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
            chosen=seen[0].chosen,
            environment=where,
        )
        for each, seen in zip(assignment.systems, zip(*ranks, strict=True), strict=True)
    ]


def shortest_s(workload: Workload, alone_s: float, cluster: Cluster) -> float:
    """T*, with computation stretched to what was measured alone."""
    return workload.scaled(time_by=alone_s / workload.compute_s).bound_s(cluster.seconds_per_byte)


def _step_s(ranks: Sequence[Seen]) -> float:
    return statistics.median(second for rank in ranks for turn in rank.turns_s for second in turn)
