"""The scheduler: exact schedules first, then what must hold for every schedule."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core import Complete, Finished, Part, Policy, Ready, Replan, Scheduler, Sent, Stage, Start, Task, Tensor
from legato.core.fusion import one_per_tensor
from legato.core.policies import POLICIES, ByteScheduler, Fifo
from legato.core.policy import Bucket, Order
from legato.errors import PlanError
from tests.core.drive import Driver


def tensors_of(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=f"t{place}", num_bytes=size, priority=place, item_bytes=1) for place, size in enumerate(sizes)
    )


def started(commands: list[Start | Complete]) -> list[tuple[int, int, int]]:
    return [(c.part.bucket, c.part.offset, c.part.length) for c in commands if isinstance(c, Start)]


def test_an_urgent_tensor_overtakes_at_the_next_part() -> None:
    """Two tensors of 8 bytes, parts of 4, credit of 4: the link carries one part at a time.

    ready          1           0
    link           1a ────── 1a│0a 0b│1b
    """
    tensors = tensors_of(8, 8)
    scheduler = Scheduler(tensors, ByteScheduler().plan(tensors, partition_bytes=4, credit_bytes=4))
    assert started(scheduler.handle(0, Ready(Task(0, 1)))) == [(1, 0, 4)]
    assert started(scheduler.handle(1, Ready(Task(0, 0)))) == []
    assert repr(scheduler) == "<Scheduler queued=[(0,)@0, (1,)@0] in_flight=4 B>"
    assert started(scheduler.handle(2, Finished(Part(0, 1, Stage.SYNC, 0, 4)))) == [(0, 0, 4)]
    assert started(scheduler.handle(3, Finished(Part(0, 0, Stage.SYNC, 0, 4)))) == [(0, 4, 4)]
    assert scheduler.handle(4, Finished(Part(0, 0, Stage.SYNC, 4, 4))) == [
        Complete(Task(0, 0), ready_s=1, started_s=2, finished_s=4),
        Start(Part(0, 1, Stage.SYNC, 4, 4)),
    ]
    assert scheduler.handle(5, Finished(Part(0, 1, Stage.SYNC, 4, 4))) == [Complete(Task(0, 1), 0, 0, 5)]
    assert scheduler.idle


def test_credit_is_a_window_of_bytes() -> None:
    """Parts of 4 in a window of 10: two fit, the third waits; a part larger than the window goes alone."""
    tensors = tensors_of(12, 16)
    scheduler = Scheduler(tensors, ByteScheduler().plan(tensors, partition_bytes=4, credit_bytes=10))
    assert started(scheduler.handle(0, Ready(Task(0, 0)))) == [(0, 0, 4), (0, 4, 4)]
    assert scheduler.in_flight_bytes == 8
    whole = Scheduler(tensors, ByteScheduler().plan(tensors, partition_bytes=100, credit_bytes=10))
    assert started(whole.handle(0, Ready(Task(0, 1)))) == [(1, 0, 16)]
    assert started(whole.handle(0, Ready(Task(0, 0)))) == []


def test_credit_comes_back_when_a_part_is_sent() -> None:
    """A window of one part: the second starts when the first has left, and the end of the first gives nothing back."""
    tensors = tensors_of(4, 4, 4)
    scheduler = Scheduler(tensors, Fifo().plan(tensors, credit_bytes=1))
    for index in range(3):
        scheduler.handle(0, Ready(Task(0, index)))
    first, second = Part(0, 0, Stage.SYNC, 0, 4), Part(0, 1, Stage.SYNC, 0, 4)
    assert scheduler.handle(1, Sent(first)) == [Start(second)]
    assert scheduler.handle(2, Finished(first)) == [Complete(Task(0, 0), 0, 0, 2)]
    assert scheduler.in_flight_bytes == 4
    assert scheduler.handle(3, Finished(second))[-1] == Start(Part(0, 2, Stage.SYNC, 0, 4))
    assert scheduler.in_flight_bytes == 4


def test_a_part_that_does_not_fit_holds_back_smaller_ones_behind_it() -> None:
    tensors = tensors_of(8, 2)
    scheduler = Scheduler(tensors, ByteScheduler().plan(tensors, partition_bytes=8, credit_bytes=9))
    scheduler.handle(0, Ready(Task(0, 1)))
    assert started(scheduler.handle(1, Ready(Task(0, 0)))) == []


def test_a_bucket_waits_for_its_last_tensor_and_completes_all_of_them() -> None:
    tensors = tensors_of(3, 5)
    scheduler = Scheduler(tensors, Fifo().plan(tensors, buckets=((0, 1),)))
    assert scheduler.handle(0, Ready(Task(0, 1))) == []
    assert scheduler.handle(1, Ready(Task(0, 0))) == [Start(Part(0, 0, Stage.SYNC, 0, 8))]
    assert scheduler.handle(2, Finished(Part(0, 0, Stage.SYNC, 0, 8))) == [
        Complete(Task(0, 0), 1, 1, 2),
        Complete(Task(0, 1), 0, 1, 2),
    ]


def run_serially(policy: Policy, arrivals: list[int]) -> list[tuple[str, int]]:
    """One operation at a time; tensor arrivals[0] is ready first, each other one when the operation before is over."""
    tensors = tensors_of(*[4] * len(arrivals))
    scheduler = Scheduler(tensors, policy.plan(tensors, credit_bytes=4, buckets=one_per_tensor(tensors)))
    log: list[Part] = []
    commands = scheduler.handle(0, Ready(Task(0, arrivals[0])))
    for later in [*arrivals[1:], None, None, None, None, None, None]:
        log += [command.part for command in commands if isinstance(command, Start)]
        if later is not None:
            scheduler.handle(0, Ready(Task(0, later)))
        if not scheduler.in_flight_bytes:
            break
        commands = scheduler.handle(0, Finished(log[-1]))
    return [("RS" if part.stage is Stage.REDUCE_SCATTER else "AG", part.bucket) for part in log]


def test_dear_gathers_only_when_everything_is_scattered() -> None:
    """ready      2   1   0
    link       RS2 RS1 RS0 │ AG0 AG1 AG2
    """
    schedule = [("RS", 2), ("RS", 1), ("RS", 0), ("AG", 0), ("AG", 1), ("AG", 2)]
    assert run_serially(POLICIES["dear"], [2, 1, 0]) == schedule


def test_rsag_needs_no_barrier_and_serves_the_nearest_deadline() -> None:
    """ready      0   2   1
    link       RS0 AG0 │ RS1 AG1 │ RS2 AG2
    """
    schedule = [("RS", 0), ("AG", 0), ("RS", 1), ("AG", 1), ("RS", 2), ("AG", 2)]
    assert run_serially(POLICIES["rsag"], [0, 2, 1]) == schedule
    assert run_serially(POLICIES["rsag"], [2, 1, 0]) == [
        ("RS", 2),
        ("RS", 1),
        ("RS", 0),
        ("AG", 0),
        ("AG", 1),
        ("AG", 2),
    ]


def test_a_new_plan_starts_at_its_step_and_leaves_the_one_under_way_alone() -> None:
    tensors = tensors_of(8)
    scheduler = Scheduler(tensors, ByteScheduler().plan(tensors, partition_bytes=4, credit_bytes=4))
    scheduler.handle(0, Ready(Task(0, 0)))
    scheduler.handle(1, Replan(1, ByteScheduler().plan(tensors, partition_bytes=2, credit_bytes=4)))
    assert started(scheduler.handle(2, Finished(Part(0, 0, Stage.SYNC, 0, 4)))) == [(0, 4, 4)]
    scheduler.handle(3, Finished(Part(0, 0, Stage.SYNC, 4, 4)))
    assert started(scheduler.handle(4, Ready(Task(1, 0)))) == [(0, 0, 2), (0, 2, 2)]


def test_a_plan_cannot_start_at_a_step_that_has_begun() -> None:
    tensors = tensors_of(8, 8)
    plan = ByteScheduler().plan(tensors)
    scheduler = Scheduler(tensors, plan)
    scheduler.handle(0, Ready(Task(3, 0)))
    with pytest.raises(PlanError, match="step 3 has begun; a new plan can start at step 4"):
        scheduler.handle(1, Replan(3, plan))


def test_a_task_is_ready_once() -> None:
    tensors = tensors_of(8, 8)
    scheduler = Scheduler(tensors, Fifo().plan(tensors))
    first = scheduler.handle(0, Ready(Task(0, 0)))
    with pytest.raises(ValueError, match="ready twice"):
        scheduler.handle(1, Ready(Task(0, 0)))
    for command in first + scheduler.handle(2, Ready(Task(0, 1))):
        assert isinstance(command, Start)
        scheduler.handle(3, Finished(command.part))
    with pytest.raises(ValueError, match="the step is over"):
        scheduler.handle(4, Ready(Task(0, 0)))


def test_a_plan_must_hold_every_tensor_once() -> None:
    tensors = tensors_of(8, 8)
    with pytest.raises(PlanError, match="holds a tensor that another holds too"):
        Scheduler(tensors, Fifo().plan(tensors, buckets=((0,), (0, 1))))


class SmallestFirst(Policy):
    """A policy of a user's own: short tensors before long ones."""

    name = "smallest-first"

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.num_bytes,)


def test_a_policy_of_a_users_own() -> None:
    tensors = tensors_of(9, 3, 6)
    scheduler = Scheduler(tensors, SmallestFirst().plan(tensors, credit_bytes=1))
    for index in range(3):
        scheduler.handle(0, Ready(Task(0, index)))
    assert repr(scheduler) == "<Scheduler queued=[(1,)@0, (2,)@0] in_flight=9 B>"


sizes = st.lists(st.integers(0, 40), min_size=1, max_size=8)
seeds = st.integers(0, 2**32 - 1)
limits = st.one_of(st.none(), st.integers(1, 50))
policies = st.sampled_from(list(POLICIES.values()))


@given(sizes=sizes, partition=limits, credit=limits, policy=policies, seed=seeds)
def test_bytes_are_conserved_and_every_task_completes_once(
    sizes: list[int], partition: int | None, credit: int | None, policy: Policy, seed: int
) -> None:
    tensors = tensors_of(*sizes)
    plan = policy.plan(tensors, partition_bytes=partition, credit_bytes=credit)
    driver = Driver(tensors, plan, Random(seed))
    for step in range(3):
        driver.run_step(step)
    driver.drain()
    ranges = driver.books.bytes_by_bucket()
    assert len(ranges) == 3 * len(plan.buckets) * len(plan.stages)
    for (_, bucket, _), pieces in ranges.items():
        position = 0
        for offset, length in sorted(pieces):
            assert offset == position
            position += length
        assert position == sum(tensors[index].num_bytes for index in plan.buckets[bucket])
    assert sorted(driver.books.completed) == [Task(step, index) for step in range(3) for index in range(len(tensors))]
    assert driver.scheduler.idle
    assert driver.scheduler.in_flight_bytes == 0


@given(sizes=sizes, partition=st.integers(1, 50), credit=st.integers(1, 50), policy=policies, seed=seeds)
def test_credit_is_never_exceeded_by_more_than_one_part(
    sizes: list[int], partition: int, credit: int, policy: Policy, seed: int
) -> None:
    tensors = tensors_of(*sizes)
    driver = Driver(tensors, policy.plan(tensors, partition_bytes=partition, credit_bytes=credit), Random(seed))
    for step in range(2):
        driver.run_step(step)
    driver.drain()
    assert driver.books.peak_over_credit <= 0, "two parts in flight together always fit in the credit"


@given(sizes=sizes, partition=st.integers(1, 20), credit=st.integers(1, 50), seed=seeds)
def test_no_inversion_of_priority_beyond_the_credit(sizes: list[int], partition: int, credit: int, seed: int) -> None:
    """When a tensor becomes ready, what is less urgent and gets through before it is at most what was in flight."""
    tensors = tensors_of(*sizes)
    scheduler = Scheduler(tensors, ByteScheduler().plan(tensors, partition_bytes=partition, credit_bytes=credit))
    random = Random(seed)
    unready = list(range(len(tensors)))
    random.shuffle(unready)
    waiting: dict[int, int] = {}
    in_flight: list[Part] = []
    while unready or in_flight:
        if unready and (not in_flight or random.random() < 0.4):
            tensor = unready.pop()
            waiting[tensor] = max(len(range(0, sizes[tensor], partition)), 1)
            commands = scheduler.handle(0, Ready(Task(0, tensor)))
        else:
            commands = scheduler.handle(0, Finished(in_flight.pop(random.randrange(len(in_flight)))))
        for command in commands:
            if isinstance(command, Start):
                assert command.part.bucket == min(waiting), "a more urgent part was waiting"
                waiting[command.part.bucket] -= 1
                if not waiting[command.part.bucket]:
                    del waiting[command.part.bucket]
                in_flight.append(command.part)
        assert sum(part.length for part in in_flight) <= max(credit, partition)


@given(count=st.integers(1, 10), seed=seeds)
def test_equal_priorities_start_in_order_of_arrival(count: int, seed: int) -> None:
    tensors = tuple(Tensor(name=f"t{place}", num_bytes=4, priority=7) for place in range(count))
    scheduler = Scheduler(tensors, ByteScheduler().plan(tensors, partition_bytes=4, credit_bytes=1))
    arrival = list(range(count))
    Random(seed).shuffle(arrival)
    parts = [c.part for index in arrival for c in scheduler.handle(0, Ready(Task(0, index))) if isinstance(c, Start)]
    for part in parts:
        parts += [c.part for c in scheduler.handle(1, Finished(part)) if isinstance(c, Start)]
    assert [part.bucket for part in parts] == arrival


@given(sizes=sizes, partition=limits, credit=limits, policy=policies, seed=seeds)
def test_the_same_inputs_give_the_same_schedule(
    sizes: list[int], partition: int | None, credit: int | None, policy: Policy, seed: int
) -> None:
    tensors = tensors_of(*sizes)
    plan = policy.plan(tensors, partition_bytes=partition, credit_bytes=credit)
    runs = []
    for _ in range(2):
        driver = Driver(tensors, plan, Random(seed))
        driver.run_step(0)
        driver.drain()
        runs.append(driver.books)
    assert runs[0] == runs[1]


@given(sizes=sizes, before=policies, after=policies, partition=limits, seed=seeds)
def test_a_plan_changed_mid_step_loses_nothing(
    sizes: list[int], before: Policy, after: Policy, partition: int | None, seed: int
) -> None:
    tensors = tensors_of(*sizes)
    driver = Driver(tensors, before.plan(tensors, credit_bytes=10), Random(seed))
    driver.run_step(0, replan_to=after.plan(tensors, partition_bytes=partition))
    driver.run_step(1)
    driver.run_step(2, replan_to=before.plan(tensors))
    driver.run_step(3)
    driver.drain()
    assert sorted(driver.books.completed) == [Task(step, index) for step in range(4) for index in range(len(tensors))]
    totals = {step: sum(part.length for part in driver.books.started if part.step == step) for step in range(4)}
    assert totals == {
        step: sum(sizes) * len(policy.stages) for step, policy in enumerate((before, after, after, before))
    }
