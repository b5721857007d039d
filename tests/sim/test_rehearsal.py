"""Rehearsals: a static sequence is what the dynamic policy would have done, and is as good in the simulator."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core import Plan, Policy, Scheduler, Stage, Tensor
from legato.core.policies import POLICIES, ByteScheduler, DeAR, ReduceScatterAllGather
from legato.errors import InputError
from legato.sim import Architecture, Cluster, simulate
from legato.sim.rehearsal import assumed_ready_s, rehearse
from legato.sim.zoo import workload

RS, AG = Stage.REDUCE_SCATTER, Stage.ALL_GATHER


def ring(gbps: float, operations_in_flight: int = 1) -> Cluster:
    return Cluster(workers=2, gbps=gbps, architecture=Architecture.ALLREDUCE, operations_in_flight=operations_in_flight)


def tensors_of(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(Tensor(name=f"t{place}", num_bytes=size, priority=place) for place, size in enumerate(sizes))


def turns(plan: Plan) -> list[tuple[Stage, int]]:
    """The sequence by tensor: buckets of one are numbered from the last tensor on."""
    return [(stage, plan.buckets[bucket][0]) for stage, bucket in plan.sequence or ()]


def test_rsag_gathers_where_the_link_would_be_idle() -> None:
    """A link of 4 bytes a second to one peer, so a half of a bucket of 8 takes 1 s; one operation at a time.

    ready      2       1       0
    second     0   1   2   3   4   5   6   7
    link       RS2 AG2 RS1 AG1 RS0 AG0
    """
    tensors = tensors_of(8, 8, 8)
    plan = ReduceScatterAllGather(bucket_bytes=8).plan(tensors)
    slow, arrived_s = rehearse(plan, tensors, (4.0, 2.0, 0.0), ring(32e-9))
    assert arrived_s == (6.0, 4.0, 2.0)
    assert turns(slow) == [(RS, 2), (AG, 2), (RS, 1), (AG, 1), (RS, 0), (AG, 0)]
    assert slow.credit_bytes is None
    # At once: the most urgent first, and the others only when it is home.
    at_once = rehearse(plan, tensors, (0.0, 0.0, 0.0), ring(32e-9)).plan
    assert turns(at_once) == [(RS, 0), (AG, 0), (RS, 1), (AG, 1), (RS, 2), (AG, 2)]


def test_dear_scatters_everything_first() -> None:
    tensors = tensors_of(8, 8, 8)
    plan = DeAR(bucket_bytes=8).plan(tensors)
    static = rehearse(plan, tensors, (4.0, 2.0, 0.0), ring(32e-9)).plan
    assert turns(static) == [(RS, 2), (RS, 1), (RS, 0), (AG, 0), (AG, 1), (AG, 2)]


def test_a_large_tensor_makes_way_at_its_next_part() -> None:
    """Tensor 1 in three parts of 8; tensor 0 comes while the first is under way (an all-reduce of a part: 2 s)."""
    tensors = tensors_of(8, 24)
    plan = ByteScheduler().plan(tensors, partition_bytes=8, credit_bytes=8)
    sequence = rehearse(plan, tensors, (1.0, 0.0), ring(32e-9)).plan.sequence
    assert sequence == ((Stage.SYNC, 1), (Stage.SYNC, 0), (Stage.SYNC, 1), (Stage.SYNC, 1))


@given(
    sizes=st.lists(st.integers(1, 100).map(lambda size: 4 * size), min_size=1, max_size=10),
    ready=st.lists(st.floats(0, 5), min_size=10, max_size=10),
    policy=st.sampled_from(list(POLICIES.values())),
    partition=st.one_of(st.none(), st.integers(4, 200)),
    in_flight=st.integers(1, 3),
)
def test_every_rehearsal_gives_a_sequence_that_can_be_followed(
    sizes: list[int], ready: list[float], policy: Policy, partition: int | None, in_flight: int
) -> None:
    tensors = tensors_of(*sizes)
    plan = policy.plan(tensors, partition_bytes=partition)
    Scheduler(tensors, rehearse(plan, tensors, ready[: len(sizes)], ring(1e-6, in_flight)).plan)


@pytest.mark.parametrize("name", ["wfbp", "bytescheduler", "dear", "rsag"])
@pytest.mark.parametrize("model", ["resnet50", "bert-base"])
def test_the_static_order_is_as_good_as_the_dynamic_one(model: str, name: str) -> None:
    task = workload(model)
    cluster = Cluster(workers=8, gbps=10, architecture=Architecture.ALLREDUCE, latency_s=20e-6, operations_in_flight=2)
    policy: Policy = ByteScheduler(fusion_bytes=4 << 20) if name == "bytescheduler" else POLICIES[name]
    dynamic = replace(policy.plan(task.tensors), credit_bytes=16 << 20)
    backward = [layer.backward_s for layer in task.layers]
    ready_s = [sum(backward[place:]) for place, layer in enumerate(task.layers) if layer.num_bytes]
    static = rehearse(dynamic, task.tensors, ready_s, cluster).plan
    before, after = simulate(task, cluster, dynamic), simulate(task, cluster, static)
    assert after.iteration_s <= before.iteration_s * 1.005


def test_what_is_assumed_before_anything_is_known() -> None:
    assert assumed_ready_s(tensors_of(4, 8, 4), 4.0) == (4.0, 3.0, 1.0)


def test_only_rings_are_rehearsed() -> None:
    tensors = tensors_of(8)
    with pytest.raises(InputError, match="use arch allreduce instead of ps"):
        rehearse(ByteScheduler().plan(tensors), tensors, (0.0,), Cluster(workers=2, gbps=1))


def test_a_time_for_every_tensor() -> None:
    tensors = tensors_of(8, 8)
    with pytest.raises(InputError, match="2 tensors, but 1 times"):
        rehearse(ByteScheduler().plan(tensors), tensors, (0.0,), ring(1))
