"""`legato sim`: what a policy would make of a model on a cluster, before anything is bought or built."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from legato.cli.options import (
    Arch,
    Batch,
    Gbps,
    Latency,
    Overhead,
    Placement,
    Servers,
    Tflops,
    Workers,
    given,
    read_cluster,
    read_workload,
)
from legato.core import Plan, Policy, Workload
from legato.core.policies import POLICIES, by_name
from legato.errors import InputError
from legato.observe import TimelineConfig
from legato.observe.simulated import SimulatedWorker, write
from legato.sim import Architecture, Cluster, Result, simulate
from legato.sim.zoo import DEFAULT_TFLOPS, ZOO
from legato.units import format_bytes, parse_bytes


def sim(
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="the same as --model")] = None,
    *,
    model: Annotated[
        str, typer.Option(help=f"{', '.join(ZOO)}; or a workload's JSON file, such as `legato profile` writes")
    ] = "vgg16",
    workers: Workers = 8,
    gbps: Gbps = "10",
    arch: Arch = Architecture.PS.value,
    policy: Annotated[str, typer.Option(help=f"{', '.join(POLICIES)}; or all")] = "bytescheduler",
    partition: Annotated[str | None, typer.Option(help="largest part: 64KB, 4MB; else the policy's own")] = None,
    credit: Annotated[str | None, typer.Option(help="bytes in flight: 16MB; else the policy's own")] = None,
    servers: Servers = 0,
    deployment: Placement = None,
    latency: Latency = "0",
    overhead: Overhead = "0",
    batch: Batch = None,
    tflops: Tflops = DEFAULT_TFLOPS,
    timeline: Annotated[Path | None, typer.Option(help="write what happens when, for ui.perfetto.dev")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Simulate a model on a cluster and compare the iteration with T*, the shortest possible."""
    cluster = read_cluster(
        workers=workers,
        gbps=gbps,
        arch=arch,
        servers=servers,
        deployment=deployment,
        latency=latency,
        overhead=overhead,
    )
    task = read_workload(named or model, batch, tflops)
    partition_bytes = None if partition is None else given("--partition", parse_bytes, partition)
    credit_bytes = None if credit is None else given("--credit", parse_bytes, credit)
    policies = list(POLICIES.values()) if policy == "all" else [by_name(policy)]
    plans = [_plan(each, task, cluster, partition_bytes, credit_bytes) for each in policies]
    if timeline is not None and len(plans) > 1:
        raise InputError("--timeline: a timeline is of one policy; name it with --policy")
    watchers = [] if timeline is None else _watchers(timeline, task, cluster, plans[0])
    observers = [watcher for _, watcher in watchers] or None
    results = [simulate(task, cluster, plan, observers=observers) for plan in plans]
    if timeline is not None:
        write(timeline, watchers)
    if as_json:
        rows = [_row(each, cluster, result) for each, result in zip(policies, results, strict=True)]
        print(json.dumps(rows if policy == "all" else rows[0], indent=1))
    else:
        _print_table(task, cluster, [each.name for each in policies], plans, results)


def _watchers(path: Path, task: Workload, cluster: Cluster, plan: Plan) -> list[tuple[str, SimulatedWorker]]:
    """One for each group of alike workers, with its title."""
    config = TimelineConfig(path=path)
    return [
        (
            f"worker {number}" + (f", and {group.hosts - 1} alike" if group.hosts > 1 else ""),
            SimulatedWorker(config, task, plan),
        )
        for number, group in enumerate(cluster.simulated)
    ]


def _plan(
    policy: Policy, task: Workload, cluster: Cluster, partition_bytes: int | None, credit_bytes: int | None
) -> Plan:
    hops = 2 if cluster.architecture in (Architecture.PS, Architecture.NATIVE) else 2 * (cluster.workers - 1)
    timing = task.timing(
        startup_s=cluster.overhead_s + hops * cluster.latency_s, seconds_per_byte=cluster.seconds_per_byte
    )
    return policy.plan(task.tensors, partition_bytes=partition_bytes, credit_bytes=credit_bytes, timing=timing)


def _row(policy: Policy, cluster: Cluster, result: Result) -> dict[str, object]:
    return {
        "iteration_s": result.iteration_s,
        "bound_s": result.bound_s,
        "ratio": result.ratio,
        "compute_s": result.compute_s,
        "communication_s": result.communication_s,
        "exposed_s": result.exposed_s,
        "policy": policy.name,
        "arch": str(cluster.architecture),
        "workers": cluster.workers,
        "gbps": cluster.gbps,
    }


def _print_table(task: Workload, cluster: Cluster, names: list[str], plans: list[Plan], results: list[Result]) -> None:
    table = Table(
        title=f"{task.name} on {cluster.workers} workers, {cluster.gbps:g} Gbit/s, {cluster.architecture}",
        caption=(
            f"T* {results[0].bound_s * 1e3:.1f} ms, computation {results[0].compute_s * 1e3:.1f} ms, "
            f"communication {results[0].communication_s * 1e3:.1f} ms ({task.num_bytes / 1e6:.0f} MB)"
        ),
    )
    table.add_column("policy", no_wrap=True)
    for column in ("partition", "credit", "buckets", "ms", "exposed", "/ T*"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, plan, result in zip(names, plans, results, strict=True):
        table.add_row(
            name,
            "whole" if plan.largest_partition_bytes is None else format_bytes(plan.largest_partition_bytes),
            "no limit" if plan.credit_bytes is None else format_bytes(plan.credit_bytes),
            str(len(plan.buckets)),
            f"{result.iteration_s * 1e3:.1f}",
            f"{result.exposed_s * 1e3:.1f}",
            f"{result.ratio:.3f}",
        )
    Console().print(table)
