"""Plans with a sequence: every rank starts the same parts in the same order, whatever is ready where and when."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core import Complete, Finished, Part, Plan, Policy, Ready, Replan, Scheduler, Stage, Start, Task, Tensor
from legato.core.plan import Turn
from legato.core.policies import POLICIES, ByteScheduler, DeAR, Fifo, ReduceScatterAllGather
from legato.errors import PlanError
from tests.core.drive import Driver

SYNC, RS, AG = Stage
RSAG = ReduceScatterAllGather()


def tensors_of(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=f"t{place}", num_bytes=size, priority=place, item_bytes=1) for place, size in enumerate(sizes)
    )


def started(commands: list[Start | Complete]) -> list[tuple[Stage, int, int]]:
    return [(c.part.stage, c.part.bucket, c.part.step) for c in commands if isinstance(c, Start)]


def test_nobody_starts_before_the_turn_comes() -> None:
    """sequence   2 0 1

    ready      0   1   2
    started            2 0 1
    """
    tensors = tensors_of(4, 4, 4)
    plan = replace(Fifo().plan(tensors), sequence=((SYNC, 2), (SYNC, 0), (SYNC, 1)))
    scheduler = Scheduler(tensors, plan)
    assert scheduler.handle(0, Ready(Task(0, 0))) == []
    assert repr(scheduler) == "<Scheduler queued=[] turn=SYNC(2,)@0 in_flight=0 B>"
    assert scheduler.handle(1, Ready(Task(0, 1))) == []
    assert started(scheduler.handle(2, Ready(Task(0, 2)))) == [(SYNC, 2, 0), (SYNC, 0, 0), (SYNC, 1, 0)]


def test_a_gather_waits_for_its_own_scatter_and_holds_the_others_back() -> None:
    """sequence   RS1 AG1 RS0 AG0

    ready      1    0
    finished          RS1  AG1 RS0
    started    RS1    AG1 RS0  AG0
    """
    tensors = tensors_of(4, 4)
    sequence = ((RS, 1), (AG, 1), (RS, 0), (AG, 0))
    scheduler = Scheduler(tensors, replace(RSAG.plan(tensors, buckets=((0,), (1,))), sequence=sequence))
    assert started(scheduler.handle(0, Ready(Task(0, 1)))) == [(RS, 1, 0)]
    assert started(scheduler.handle(1, Ready(Task(0, 0)))) == []
    assert started(scheduler.handle(2, Finished(Part(0, 1, RS, 0, 4)))) == [(AG, 1, 0), (RS, 0, 0)]
    assert started(scheduler.handle(3, Finished(Part(0, 1, AG, 0, 4)))) == []
    assert started(scheduler.handle(4, Finished(Part(0, 0, RS, 0, 4)))) == [(AG, 0, 0)]
    assert scheduler.handle(5, Finished(Part(0, 0, AG, 0, 4))) == [Complete(Task(0, 0), 1, 2, 5)]
    assert scheduler.idle


def test_each_mention_of_a_bucket_is_one_part_of_it() -> None:
    """A tensor of 8 bytes in parts of 4, another in between:  1a 0 1b"""
    tensors = tensors_of(4, 8)
    sequence = ((SYNC, 1), (SYNC, 0), (SYNC, 1))
    scheduler = Scheduler(tensors, replace(Fifo().plan(tensors, partition_bytes=4), sequence=sequence))
    assert scheduler.handle(0, Ready(Task(0, 1))) == [Start(Part(0, 1, SYNC, 0, 4))]
    assert scheduler.handle(1, Ready(Task(0, 0))) == [Start(Part(0, 0, SYNC, 0, 4)), Start(Part(0, 1, SYNC, 4, 4))]


def test_steps_have_their_turns_one_after_the_other() -> None:
    tensors = tensors_of(4, 4)
    plan = replace(Fifo().plan(tensors), sequence=((SYNC, 1), (SYNC, 0)))
    scheduler = Scheduler(tensors, plan)
    assert started(scheduler.handle(0, Ready(Task(0, 1)))) == [(SYNC, 1, 0)]
    assert started(scheduler.handle(1, Ready(Task(1, 1)))) == []
    assert started(scheduler.handle(2, Ready(Task(0, 0)))) == [(SYNC, 0, 0), (SYNC, 1, 1)]


@pytest.mark.parametrize(
    ("policy", "sequence", "words"),
    [
        (RSAG, ((RS, 0), (AG, 0)), "each of the 4 parts of a step once"),
        (RSAG, ((RS, 0), (RS, 0), (RS, 1), (AG, 1)), "each of the 4 parts of a step once"),
        (RSAG, ((SYNC, 0), (SYNC, 1)), "names SYNC of bucket 0, which the plan does not have"),
        (RSAG, ((RS, 0), (AG, 1), (RS, 1), (AG, 0)), "ALL_GATHER of bucket 1 precedes what it waits for"),
        (DeAR(), ((RS, 0), (AG, 0), (RS, 1), (AG, 1)), "ALL_GATHER of bucket 0 precedes what it waits for"),
    ],
)
def test_a_sequence_that_cannot_be_followed_is_refused(policy: Policy, sequence: tuple[Turn, ...], words: str) -> None:
    tensors = tensors_of(4, 4)
    plan = policy.plan(tensors, buckets=((0,), (1,)))
    with pytest.raises(PlanError, match=words):
        Scheduler(tensors, replace(plan, sequence=sequence))


sizes = st.lists(st.integers(0, 40), min_size=1, max_size=8)
seeds = st.integers(0, 2**32 - 1)
limits = st.one_of(st.none(), st.integers(1, 50))
policies = st.sampled_from(list(POLICIES.values()))


def any_sequence(tensors: tuple[Tensor, ...], plan: Plan, random: Random) -> tuple[Turn, ...]:
    """What the policy happens to do with some order of readiness and completion."""
    driver = Driver(tensors, plan, random)
    driver.run_step(0)
    driver.drain()
    return tuple((part.stage, part.bucket) for part in driver.books.started)


@given(sizes=sizes, partition=limits, credit=limits, policy=policies, seed=seeds)
def test_ranks_that_differ_in_everything_start_the_same_parts_in_the_same_order(
    sizes: list[int], partition: int | None, credit: int | None, policy: Policy, seed: int
) -> None:
    tensors = tensors_of(*sizes)
    plan = policy.plan(tensors, partition_bytes=partition, credit_bytes=credit)
    plan = replace(plan, sequence=any_sequence(tensors, plan, Random(seed)))
    ranks = []
    for rank in range(3):
        driver = Driver(tensors, plan, Random(seed + rank))
        for step in range(3):
            driver.run_step(step)
        driver.drain()
        assert driver.scheduler.idle
        assert sorted(driver.books.completed) == [Task(step, each) for step in range(3) for each in range(len(sizes))]
        ranks.append(driver.books.started)
    assert ranks[0] == ranks[1] == ranks[2]
    assert [(part.stage, part.bucket) for part in ranks[0]] == list(plan.sequence or ()) * 3


@given(sizes=sizes, before=policies, after=policies, seed=seeds)
def test_plans_change_between_chosen_and_given_order_and_lose_nothing(
    sizes: list[int], before: Policy, after: Policy, seed: int
) -> None:
    tensors = tensors_of(*sizes)
    chosen = before.plan(tensors, credit_bytes=10)
    given = after.plan(tensors)
    given = replace(given, sequence=any_sequence(tensors, given, Random(seed)))
    driver = Driver(tensors, chosen, Random(seed))
    driver.run_step(0, replan_to=given)
    driver.run_step(1)
    driver.run_step(2, replan_to=chosen)
    driver.run_step(3)
    driver.drain()
    assert sorted(driver.books.completed) == [Task(step, each) for step in range(4) for each in range(len(sizes))]


def test_a_new_sequence_begins_with_its_step() -> None:
    tensors = tensors_of(4, 4)
    plan = replace(ByteScheduler().plan(tensors), sequence=((SYNC, 1), (SYNC, 0)))
    scheduler = Scheduler(tensors, plan)
    scheduler.handle(0, Ready(Task(0, 1)))
    scheduler.handle(1, Replan(1, replace(plan, sequence=((SYNC, 0), (SYNC, 1)))))
    assert started(scheduler.handle(2, Ready(Task(0, 0)))) == [(SYNC, 0, 0)]
    assert started(scheduler.handle(3, Ready(Task(1, 1)))) == []
    assert started(scheduler.handle(4, Ready(Task(1, 0)))) == [(SYNC, 0, 1), (SYNC, 1, 1)]
