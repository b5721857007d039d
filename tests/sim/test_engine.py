"""The simulated engine on cases with an answer on paper: links of 125 MB/s, so that a millisecond is 125,000 bytes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.core import Complete, Layer, Part, Plan, Policy, Start, Workload
from legato.core.policies import POLICIES, DeAR, Fifo, PushFirst, ReduceScatterAllGather
from legato.errors import InputError
from legato.sim import Architecture, Cluster, Ownership, Simulation, simulate
from legato.sim.engine import CHUNK_BYTES, PIECES, SLACK_S
from legato.sim.zoo import workload

MS = 1e-3
MS_BYTES = 125_000


def engine(workers: int, **options: Any) -> Cluster:
    return Cluster(workers=workers, gbps=1, architecture=Architecture.NATIVE, **options)


def piece_s(hosts: int) -> float:
    """How long the last piece is on the second of its two links."""
    return min(CHUNK_BYTES / MS_BYTES * MS, SLACK_S / (hosts - 1) / PIECES)


class Watcher:
    """Notes when a worker has each sum."""

    def __init__(self) -> None:
        self.complete_s: dict[tuple[int, int], float] = {}

    def event(self, now_s: float, what: object) -> None:
        if isinstance(what, Complete):
            self.complete_s[what.task.step, what.task.tensor] = now_s

    def worked(self, *_: object) -> None:
        pass


def watched(task: Workload, cluster: Cluster, plan: Plan) -> list[Watcher]:
    watchers = [Watcher() for _ in cluster.simulated]
    Simulation(task, cluster, plan, watchers).advance(2)
    return watchers


def test_a_part_goes_to_its_owner_and_comes_back() -> None:
    """Two hosts own a part each: each sends one to the other, and then the sum of its own."""
    task = Workload("one", (Layer("a", 16 * MS_BYTES, 1 * MS, 2 * MS),))
    plan = Fifo().plan(task.tensors, partition_bytes=8 * MS_BYTES)
    result = simulate(task, engine(2), plan)
    assert result.iteration_s == pytest.approx(3 * MS + 2 * (8 * MS + piece_s(2)), rel=0.01)
    assert result.bytes_sent == 16 * MS_BYTES


def test_one_part_is_one_owners_while_the_other_links_are_idle() -> None:
    """Four hosts and one part: three contributions on the owner's downlink, then three answers on its uplink."""
    task = Workload("one", (Layer("a", 4 * MS_BYTES, 1 * MS, 2 * MS),))
    whole, cut = (Fifo().plan(task.tensors, partition_bytes=size) for size in (None, MS_BYTES))
    assert simulate(task, engine(4), whole).iteration_s == pytest.approx(3 * MS + 2 * 3 * 4 * MS, rel=0.05)
    # A part for each owner: every link carries three quarters of the bytes out, and as many back.
    assert simulate(task, engine(4), cut).iteration_s == pytest.approx(3 * MS + 2 * 3 * MS, rel=0.15)


def test_an_owner_has_its_own_sum_when_its_answers_are_sent() -> None:
    """They leave from its worker's memory. The other worker waits for what is then still in the buffer."""
    task = Workload("one", (Layer("a", 8 * MS_BYTES, 1 * MS, 2 * MS),))
    owner, other = watched(task, engine(2), Fifo().plan(task.tensors))
    answered_s = 3 * MS + 2 * 8 * MS
    assert other.complete_s[0, 0] == pytest.approx(answered_s, abs=3 * piece_s(2))
    assert 0 < other.complete_s[0, 0] - owner.complete_s[0, 0] < SLACK_S + 2 * piece_s(2)


@pytest.mark.parametrize("name", ["bytescheduler", "fifo"])
def test_an_urgent_part_overtakes_at_the_socket(name: str) -> None:
    """The large tensor is started as a whole and without credit; the urgent one comes 1 ms later, on the same way."""
    task = Workload("two", (Layer("a", MS_BYTES // 8, 0.0, 1 * MS), Layer("b", 40 * MS_BYTES, 1 * MS, 1 * MS)))
    plan = POLICIES[name].plan(task.tensors, partition_bytes=80 * MS_BYTES, credit_bytes=80 * MS_BYTES)
    servers = engine(1, servers=1, deployment=Ownership.SEPARATE)
    (watcher,) = watched(task, servers, plan)
    urgent_s, large_s = watcher.complete_s[0, 0], watcher.complete_s[0, 1]
    if name == "bytescheduler":
        # Ready at 3 ms, then twice: what is in the buffer, and a chunk that has begun.
        assert urgent_s < 3 * MS + 2 * (SLACK_S + 2 * CHUNK_BYTES / MS_BYTES * MS)
    assert (urgent_s < large_s) is (name == "bytescheduler")


def test_a_stage_barrier_holds_every_answer_until_the_owner_has_all_sums() -> None:
    layers = tuple(Layer(name, 4 * MS_BYTES, 1 * MS, 10 * MS) for name in "ab")
    task = Workload("two", layers)
    plan = DeAR().plan(task.tensors)
    assert plan.stage_barrier
    for watcher in watched(task, engine(2), plan):
        last_ready_s = 2 * MS + 20 * MS
        assert min(when for (step, _), when in watcher.complete_s.items() if step == 0) > last_ready_s


class Starts(Watcher):
    """Notes what a worker starts."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Part] = []

    def event(self, now_s: float, what: object) -> None:
        super().event(now_s, what)
        if isinstance(what, Start):
            self.started.append(what.part)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 3 * MS_BYTES), min_size=1, max_size=5),
    workers=st.integers(2, 4),
    servers=st.integers(0, 2),
    policy=st.sampled_from([*POLICIES.values()]),
    partition_bytes=st.one_of(st.none(), st.integers(20_000, 2 * MS_BYTES)),
)
def test_every_plan_finishes_and_none_beats_the_bound(
    sizes: Sequence[int], workers: int, servers: int, policy: Policy, partition_bytes: int | None
) -> None:
    task = Workload("any", tuple(Layer(str(place), 4 * size, MS, MS) for place, size in enumerate(sizes)))
    plan = policy.plan(task.tensors, partition_bytes=partition_bytes)
    deployment = Ownership.MIXED if servers else Ownership.JOINT
    cluster = engine(workers, servers=servers, deployment=deployment)
    watchers = [Starts() for _ in cluster.simulated]
    result = simulate(task, cluster, plan, observers=watchers)
    assert result.iteration_s >= result.bound_s * (1 - 1e-9)
    of_a_step = [{part for part in watcher.started if part.step == 2} for watcher in watchers]
    assert all(parts == of_a_step[0] for parts in of_a_step)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="one worker per host"):
        engine(2, workers_per_host=2)


# ---- clipping ----


def test_a_clipped_update_waits_for_all_contributions_and_for_its_own_sum_only() -> None:
    """Two hosts own a tensor each; the last layer's contributions are in when the first layer's begin to travel."""
    task = Workload("two", (Layer("a", 8 * MS_BYTES, 1 * MS, 2 * MS), Layer("b", 8 * MS_BYTES, 5 * MS, 2 * MS)))
    plan = PushFirst().plan(task.tensors)
    free, clipped = (simulate(task, engine(2), plan, clipped=each) for each in (False, True))
    waiting = simulate(task, engine(2), replace(plan, step_barrier=True))
    assert free.iteration_s <= clipped.iteration_s < waiting.iteration_s


@pytest.mark.parametrize("model", ["vgg16", "gpt2"])
def test_clipping_by_measures_costs_little_where_waiting_costs_much(model: str) -> None:
    """Communication as long as computation, as in decision 020."""
    cluster = engine(4)
    task = workload(model)
    task = task.scaled(bytes_by=28e6 / task.num_bytes)
    task = task.scaled(time_by=task.num_bytes * cluster.seconds_per_byte / task.compute_s)
    plan = PushFirst().plan(task.tensors, partition_bytes=128 << 10, credit_bytes=512 << 10)
    free, clipped = (simulate(task, cluster, plan, clipped=each, steps=1).ratio for each in (False, True))
    waiting = simulate(task, cluster, replace(plan, step_barrier=True), steps=1).ratio
    assert free - 1e-9 <= clipped < free + 0.03
    assert clipped < waiting


def test_norms_are_simulated_where_they_are_known_before_averages() -> None:
    task = Workload("one", (Layer("a", 8, 1.0, 1.0),))
    cluster = Cluster(workers=2, gbps=1, architecture=Architecture.ALLREDUCE)
    with pytest.raises(InputError, match="arch native, and where a plan sums in halves"):
        simulate(task, cluster, Fifo().plan(task.tensors), clipped=True)


def test_over_all_reduce_a_clipped_update_waits_for_first_halves_only() -> None:
    """Communication as long as computation; second halves that go before first ones hold up the norm."""
    cluster = Cluster(workers=4, gbps=1, architecture=Architecture.ALLREDUCE)
    task = workload("vgg16")
    task = task.scaled(bytes_by=50e6 / task.num_bytes)
    task = task.scaled(time_by=task.num_bytes * cluster.seconds_per_byte / task.compute_s)
    rsag = ReduceScatterAllGather(bucket_bytes=500_000).plan(
        task.tensors, partition_bytes=10**6, credit_bytes=2 * 10**6
    )
    free, in_order, first = (
        simulate(task, cluster, plan, clipped=clipped, steps=1).ratio
        for plan, clipped in ((rsag, False), (rsag, True), (rsag.first_halves_first(), True))
    )
    waiting = simulate(task, cluster, replace(rsag, step_barrier=True), steps=1).ratio
    assert first < free + 0.03
    assert first + 0.05 < in_order <= waiting
