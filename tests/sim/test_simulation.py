"""The simulator on cases with an answer on paper."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_benchmark.fixture import BenchmarkFixture

from legato.core import Layer, Plan, Policy, Workload
from legato.core.policies import P3, POLICIES, ByteScheduler, Fifo, WaitFree
from legato.errors import InputError
from legato.sim import Architecture, Background, Cluster, Group, Ownership, Simulation, simulate
from legato.sim.zoo import workload

GBPS_1_BYTE_PER_S = 8e-9
"""A link that carries one byte per second, so that bytes read as seconds."""

ONE = Workload("one", (Layer("a", 8, 1.0, 2.0),))
TWO = Workload("two", (Layer("a", 4, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
LONG = TWO.scaled(bytes_by=10, time_by=10)
"""The same in ten times as many parts."""


def slow(workers: int = 2, **options: Any) -> Cluster:
    return Cluster(workers=workers, gbps=GBPS_1_BYTE_PER_S, **options)


def whole(task: Workload) -> Plan:
    return Fifo().plan(task.tensors)


def test_the_next_slice_leaves_when_the_one_before_has_and_not_when_its_sum_is_back() -> None:
    """Two workers: slices of 4 bytes, 2 s out and 2 s back. One in flight keeps the link busy:

    push    s0  s1      s2      s3
    answer          s0      s1      s2  s3
    second  0   2   4   6   8   10  12  14  16
    """
    task = Workload("one", (Layer("a", 16, 1.0, 2.0),))
    plan = P3().plan(task.tensors, partition_bytes=4)
    assert simulate(task, slow(), plan).iteration_s == pytest.approx(1 + 2 + 16)
    # A hop takes 3 s: only the last answer's is felt, where waiting for each sum would cost 24.
    assert simulate(task, slow(latency_s=3), plan).iteration_s == pytest.approx(1 + 2 + 16 + 3)


def test_joint_workers_carry_each_byte_out_and_back() -> None:
    """Two workers: half of 8 bytes pushed, half of 8 bytes answered, on a link of 1 byte per second."""
    result = simulate(ONE, slow(), whole(ONE))
    assert result.iteration_s == pytest.approx(1 + 2 + 8)
    assert result.bytes_sent == pytest.approx(8)
    assert result.exposed_s == pytest.approx(8)
    assert result.ratio == pytest.approx(1)


@pytest.mark.parametrize(
    ("servers", "deployment", "seconds_per_byte"),
    [
        (0, Ownership.JOINT, 1.5),
        (4, Ownership.SEPARATE, 1.0),
        (2, Ownership.SEPARATE, 2.0),
        (4, Ownership.MIXED, 1.0),
        (2, Ownership.MIXED, 24 / 20),
        (1, Ownership.MIXED, 24 / 18),
    ],
)
def test_load_of_the_busiest_link(servers: int, deployment: Ownership, seconds_per_byte: float) -> None:
    """Four workers: 2n(n-1)/(n²+kn-2k) for mixed, 2(n-1)/n joint, max(1, n/k) separate."""
    cluster = slow(4, servers=servers, deployment=deployment)
    assert cluster.seconds_per_byte == pytest.approx(seconds_per_byte)


@pytest.mark.parametrize("deployment", [Ownership.SEPARATE, Ownership.MIXED])
def test_servers_relieve_the_links_in_the_simulation_too(deployment: Ownership) -> None:
    """With fine parts push and pull overlap in full duplex, and the step costs its busiest link."""
    task = Workload("big", (Layer("a", 8000, 1.0, 2.0),))
    plan = ByteScheduler().plan(task.tensors, partition_bytes=8, credit_bytes=160)
    cluster = slow(4, servers=2, deployment=deployment)
    result = simulate(task, cluster, plan)
    assert result.iteration_s == pytest.approx(3 + 8000 * cluster.seconds_per_byte, rel=0.01)


def test_ring_pays_latency_for_every_hop() -> None:
    """Four workers: 2·3 hops of 0.1 s and 2·3/4 of 8 bytes."""
    result = simulate(ONE, slow(4, architecture=Architecture.ALLREDUCE, latency_s=0.1), whole(ONE))
    assert result.iteration_s == pytest.approx(3 + 6 * 0.1 + 12)


@pytest.mark.parametrize("architecture", [Architecture.ALLREDUCE, Architecture.RSAG])
def test_the_halves_of_an_all_reduce_cost_what_the_whole_costs(architecture: Architecture) -> None:
    cluster = slow(4, architecture=architecture, latency_s=0.1)
    halves = POLICIES["rsag"].plan(ONE.tensors)
    assert simulate(ONE, cluster, halves).iteration_s == pytest.approx(3 + 6 * 0.1 + 12)
    assert simulate(ONE, cluster, whole(ONE)).iteration_s == pytest.approx(3 + 6 * 0.1 + 12)


def test_operations_in_flight_hide_each_others_latency() -> None:
    one_at_a_time = simulate(TWO, slow(4, architecture=Architecture.ALLREDUCE, latency_s=1.0), whole(TWO))
    two_at_once = simulate(
        TWO, slow(4, architecture=Architecture.ALLREDUCE, latency_s=1.0, operations_in_flight=2), whole(TWO)
    )
    assert one_at_a_time.iteration_s - two_at_once.iteration_s == pytest.approx(6.0)


def test_overhead_is_paid_for_every_part_and_answer() -> None:
    plan = ByteScheduler().plan(ONE.tensors, partition_bytes=4, credit_bytes=8)
    result = simulate(ONE, slow(overhead_s=0.25), plan)
    assert result.iteration_s == pytest.approx(3 + 8 + 4 * 0.25)


def test_priority_lets_forward_begin_while_the_last_layer_travels() -> None:
    """fifo: backward b 20 s, then 120 bytes with a last, then forward 20 s. By priority, forward a hides behind b."""
    fine = ByteScheduler().plan(LONG.tensors, partition_bytes=1, credit_bytes=1)
    assert simulate(LONG, slow(), fine).iteration_s == pytest.approx(150)
    assert simulate(LONG, slow(), whole(LONG)).iteration_s == pytest.approx(160)


def test_a_step_barrier_keeps_forward_waiting_for_everything() -> None:
    barrier = simulate(TWO, slow(), WaitFree(bucket_bytes=1, first_bucket_bytes=1).plan(TWO.tensors))
    assert barrier.iteration_s == pytest.approx(2 + 2 + 8 + 4)


def test_one_worker_has_nothing_to_wait_for() -> None:
    result = simulate(TWO, slow(1), whole(TWO))
    assert result.iteration_s == pytest.approx(6)
    assert result.bytes_sent == 0


def test_a_straggler_holds_everybody() -> None:
    fast = simulate(ONE, slow(4), whole(ONE))
    mixed = simulate(ONE, slow(4, groups=(Group(hosts=1, speed=0.5),)), whole(ONE))
    assert mixed.iteration_s == pytest.approx(fast.iteration_s + 3)
    assert mixed.compute_s == 6


def test_a_host_with_a_slow_link_decides_the_bound() -> None:
    cluster = slow(4, groups=(Group(hosts=1, gbps=GBPS_1_BYTE_PER_S / 2),))
    result = simulate(ONE, cluster, whole(ONE))
    assert result.bound_s == pytest.approx(3 + 24)
    assert result.iteration_s >= result.bound_s - 1e-9


def test_background_jobs_and_changing_rates_take_bandwidth() -> None:
    alone = simulate(ONE, slow(), whole(ONE))
    shared = simulate(ONE, slow(background=(Background(start_s=0, stop_s=1e9, share=0.5),)), whole(ONE))
    halved = simulate(ONE, slow(rates=((0.0, 0.5),)), whole(ONE))
    assert shared.iteration_s == halved.iteration_s == pytest.approx(alone.iteration_s + 8)
    later = simulate(ONE, slow(rates=((0.0, 1.0), (33.0, 0.5))), whole(ONE), warmup=1, steps=4)
    assert later.steps_s == pytest.approx((11, 11, 19, 19))


def test_workers_of_one_host_sum_there_first() -> None:
    alone = simulate(ONE, slow(), whole(ONE))
    shared = simulate(ONE, slow(workers_per_host=2, local_gbps=GBPS_1_BYTE_PER_S * 4), whole(ONE))
    assert shared.bytes_sent == alone.bytes_sent, "a gradient crosses the network once per host"
    assert shared.iteration_s == pytest.approx(alone.iteration_s + 2 * 8 * 0.5 / 4)


def test_a_host_sums_the_next_part_while_one_is_on_the_link() -> None:
    """Parts of 4 bytes: 1 s for the sum inside the host, 2 s out, 2 s back and 1 s inside again. The link has no pause.

    inside  p0 p1 p2 p3
    push       p0  p1  …
    """
    task = Workload("one", (Layer("a", 16, 1.0, 2.0),))
    cluster = slow(workers_per_host=2, local_gbps=GBPS_1_BYTE_PER_S * 2)
    result = simulate(task, cluster, Fifo().plan(task.tensors, partition_bytes=4))
    assert result.iteration_s == pytest.approx(1 + 2 + 1 + 16 + 1)


def test_the_trace_has_the_life_of_every_task() -> None:
    result = simulate(TWO, slow(), whole(TWO), warmup=1, steps=2)
    assert sorted({entry.task for entry in result.trace}) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(entry.ready_s <= entry.started_s <= entry.finished_s for entry in result.trace)


@settings(max_examples=40)
@given(
    model=st.lists(
        st.builds(Layer, st.just("l"), st.integers(1, 50), st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=6
    ),
    workers=st.integers(2, 9),
    policy=st.sampled_from(list(POLICIES.values())),
    architecture=st.sampled_from([Architecture.PS, Architecture.ALLREDUCE, Architecture.RSAG]),
    latency_s=st.floats(0, 1),
)
def test_nothing_beats_the_bound_and_nobody_sends_more_than_needed(
    model: list[Layer], workers: int, policy: Policy, architecture: Architecture, latency_s: float
) -> None:
    task = Workload("random", tuple(replace(layer, name=f"l{place}") for place, layer in enumerate(model)))
    cluster = slow(workers, architecture=architecture, latency_s=latency_s)
    plan = policy.plan(task.tensors, timing=task.timing(startup_s=latency_s))
    result = simulate(task, cluster, plan)
    assert result.iteration_s >= result.bound_s * (1 - 1e-9)
    assert result.bytes_sent == pytest.approx(2 * (workers - 1) / workers * task.num_bytes, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers=0 must be more than 0"),
        ({"latency_s": -1.0}, "latency_s=-1.0 must be 0 or more"),
        ({"servers": 2}, "deployment joint does not go with servers=2"),
        ({"servers": 2, "deployment": Ownership.MIXED, "architecture": Architecture.RSAG}, "has no servers"),
        ({"groups": (Group(hosts=9),)}, "more hosts than workers"),
        ({"groups": (Group(hosts=1, speed=0),)}, "a group needs"),
        ({"rates": ((1.0, 1.0), (0.0, 1.0))}, "rising seconds"),
        ({"background": (Background(start_s=0, stop_s=1, share=1.0),)}, "share"),
    ],
)
def test_impossible_clusters_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        slow(**{"workers": 4, **options})


def test_simulated_cost_per_iteration(benchmark: BenchmarkFixture) -> None:
    """vgg16 with 1 MB parts on 8 workers: reported, not asserted (`make bench`)."""
    task = workload("vgg16")
    plan = ByteScheduler().plan(task.tensors, partition_bytes=1_000_000, credit_bytes=4_000_000)
    simulation = Simulation(task, Cluster(workers=8, gbps=10), plan)
    benchmark(simulation.advance, 1)
