"""Measures a cell: the links first, then every system in turns."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from bench import crew, goodput
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
from legato.tuning.candidate import Candidate

Heard = Callable[[str], None]
"""What is done when a system has had a turn."""

_ENVIRONMENT = {
    # For all systems: otherwise glibc returns every gradient to the kernel, and the next faults its pages in again.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "GLOO_SOCKET_IFNAME": "eth0",
    # Hosts have no name service, of which torch warns from C++ as soon as a worker imports it.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def measure(cell: Cell, hear: Heard) -> list[Row]:
    """A row for each system and one for training alone."""
    systems = [System(name=ALONE, family=ALONE), *map(system, cell.systems)]
    with Testbed(hosts=cell.hosts, servers=cell.servers, gbps=cell.line_gbps) as testbed, _environ(_ENVIRONMENT):
        links = goodput.measure(testbed)
        workload = cell.workload(links.bytes_per_s)
        jobs = [
            _job(each, cell, candidate(each, cell, workload, links.bytes_per_s), testbed.address(0), PORT + number)
            for number, each in enumerate(systems)
        ]
        assignment = Assignment(
            systems=systems,
            jobs=jobs,
            workload=workload,
            num_workers=cell.hosts,
            address=testbed.address(0),
            num_rounds=cell.rounds,
            num_steps=cell.steps,
        )

        def heard(rank: int, name: str) -> None:
            if rank == 0:
                hear(name)

        with ExitStack() as serving:
            for job in jobs:
                serving.enter_context(job.served(testbed))
            ranks = crew.follow(testbed, range(cell.hosts), heard, take_turns, assignment)
    by_system = list(zip(*ranks, strict=True))
    alone_s = _step_s(by_system[0])
    where = environment()
    return [
        Row(
            cell=cell.key(),
            system=each.name,
            step_s=_step_s(seen),
            turns_s=median_turns([rank.turns_s for rank in seen]),
            bound_s=shortest_s(workload, alone_s, cell.cluster(links.bytes_per_s, with_servers=each.uses_servers)),
            alone_s=alone_s,
            num_bytes=workload.num_bytes,
            scale=cell.scale,
            shorten=cell.shorten,
            goodput_gbps=links.bytes_per_s * 8e-9,
            all_to_all_gbps=links.all_to_all * 8e-9,
            cpu_s=statistics.median(second for rank in seen for second in rank.cpu_s),
            peak_bytes=max(rank.peak_bytes for rank in seen),
            chosen=seen[0].chosen,
            environment=where,
        )
        for each, seen in zip(systems, by_system, strict=True)
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


def _job(each: System, cell: Cell, plan: Candidate, conductor: str, port: int) -> Job:
    """The native job of a system; the others have one, too, and do not join it."""
    return Job(
        deployment=Deployment(num_workers=cell.hosts, num_servers=cell.servers if each.uses_servers else 0),
        conductor=conductor,
        port=port,
        partition_bytes=plan.partition_bytes,
        credit_bytes=plan.credit_bytes,
        join_timeout_s=600.0,  # servers wait from the start until their system has its first turn
    )


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
