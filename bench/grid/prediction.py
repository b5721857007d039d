"""What the simulator says of a row: the same workload, the goodput of its links, and a plan that stands for the system.

Nothing is fitted to the row itself: computation and goodput were measured without the system, and what an operation
costs beside its bytes is the same for all rows of a transport.
"""

from dataclasses import replace

from bench.grid.calls import call
from bench.grid.lineup import System, system
from bench.grid.row import Row
from bench.study.settings import no_overlap
from legato.core import Plan, Workload
from legato.core.policies import WaitFree
from legato.doctor.forecast import engine_of, ring_of
from legato.exchange.planner import NativePlanner
from legato.sim import Cluster, simulate
from legato.torch.sync.c10d_plan import StaticConfig, StaticPlanner
from legato.transports.native.session import PARTITION_BYTES
from legato.units import parse_bytes


def predicted_s(row: Row) -> float:
    """The iteration, simulated."""
    return simulate(*scene(row), clipped=_waits_for_norms(system(row.system))).iteration_s


def _waits_for_norms(chosen: System) -> bool:
    """Not for the averages: whoever clips in another way has a barrier in its plan."""
    return chosen.clip == "clip" and (chosen.is_native or chosen.sums_in_halves)


def scene(row: Row) -> tuple[Workload, Cluster, Plan]:
    """What to simulate for a row."""
    task, cluster, plan = _unclipped(row)
    chosen = system(row.system)
    return task, cluster, replace(plan, step_barrier=True) if chosen.clip and not _waits_for_norms(chosen) else plan


def _unclipped(row: Row) -> tuple[Workload, Cluster, Plan]:
    cell, chosen = row.of, system(row.system)
    bytes_per_s = row.goodput_gbps * 1e9 / 8
    task = cell.workload(bytes_per_s)
    task = task.scaled(time_by=row.alone_s / task.compute_s, bytes_by=0.5 if chosen.variation == "bf16" else 1.0)
    cluster = cell.cluster(bytes_per_s, with_servers=chosen.uses_servers)
    if chosen.is_native:
        return task, engine_of(cluster), _native_plan(row, chosen, task)
    ring = ring_of(cluster)
    return task, ring, _ring_plan(chosen, task, ring, row.chosen)


def _native_plan(row: Row, chosen: System, task: Workload) -> Plan:
    """What `schedule` writes for such a call."""
    bytes_per_s = row.goodput_gbps * 1e9 / 8
    made = call(chosen, row.of, row.of.workload(bytes_per_s), bytes_per_s)
    assert made is not None
    planner = NativePlanner(
        policy=made.policy,
        partition_bytes=made.partition_bytes,
        credit_bytes=made.credit_bytes,
        bytes_per_s=bytes_per_s,
    )
    return planner.write(task.tensors, PARTITION_BYTES, row.of.hosts + row.of.servers)


def _ring_plan(chosen: System, task: Workload, ring: Cluster, decided: str) -> Plan:
    if chosen.family == "no-overlap":
        return no_overlap(task)
    if chosen.family == "ddp":
        bucket_bytes = parse_bytes(decided) if chosen.variation == "tuned" else chosen.bucket_bytes
        policy = WaitFree() if bucket_bytes is None else WaitFree(bucket_bytes, bucket_bytes)
        return policy.plan(task.tensors)
    config = StaticConfig(policy=chosen.policy, bucket_bytes=chosen.bucket_bytes)
    kinds = ["float32"] * len(task.tensors)
    planner = StaticPlanner(config, task.tensors, kinds, num_ranks=ring.workers, is_nccl=False)
    layers_s = [layer.backward_s for layer in task.layers]
    ready_s = [sum(layers_s[place:]) for place, layer in enumerate(task.layers) if layer.num_bytes]
    plan = planner.plan(
        range(len(task.tensors)),
        ready_s=ready_s,
        bytes_per_s=2 / ring.seconds_per_byte,
        measured=_waits_for_norms(chosen),
    )
    assert plan.largest_partition_bytes is not None
    # Without the sequence that all ranks would follow: simulated ranks are alike and need no agreement. The credit that
    # it was made with then decides the order again.
    return replace(plan, sequence=None, credit_bytes=config.operations_in_flight * plan.largest_partition_bytes)
