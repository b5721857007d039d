"""Plans: data that survives its journey, says what is wrong with itself, and ranks as its policy ordered."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core import Plan, Policy, Stage, Tensor
from legato.core.policies import POLICIES, ByteScheduler, DeAR, Fifo, ReduceScatterAllGather
from legato.core.policy import Bucket, Order
from legato.errors import InputError, PlanError

SYNC, RS, AG = Stage
ONE = Plan(buckets=((0,),), ranks=((0,),), partition_bytes=(None,))


def tensors_of(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=f"t{place}", num_bytes=size, priority=place, item_bytes=1) for place, size in enumerate(sizes)
    )


class SmallestFirst(Policy):
    name = "smallest"

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.num_bytes,)


def test_ranks_are_dense_and_equal_orders_are_equal_ranks() -> None:
    assert SmallestFirst().plan(tensors_of(900, 3, 70, 3)).ranks == ((2, 0, 1, 0),)
    assert Fifo().plan(tensors_of(1, 2)).ranks == ((0, 0),)


def test_ranks_compare_across_stages() -> None:
    """DeAR scatters by arrival before it gathers anything; rsag gathers a bucket before it scatters a later one."""
    tensors, buckets = tensors_of(4, 4), ((0,), (1,))
    assert DeAR().plan(tensors, buckets=buckets).ranks == ((0, 0), (1, 2))
    assert ReduceScatterAllGather().plan(tensors, buckets=buckets).ranks == ((1, 3), (0, 2))


def test_an_order_that_cannot_be_compared_is_refused() -> None:
    class Mixed(Policy):
        name = "mixed"

        def order(self, bucket: Bucket, stage: Stage) -> Any:  # noqa: ARG002
            return bucket.num_bytes if bucket.priority else "first"

    with pytest.raises(InputError, match=r"policy 'mixed': order\(\) must return tuples of numbers"):
        Mixed().plan(tensors_of(4, 4))


def test_each_bucket_has_a_partition_of_its_own() -> None:
    tensors = tensors_of(10, 10)
    plan = replace(Fifo().plan(tensors), partition_bytes=(4, None))
    assert plan.parts(tensors) == (((0, 4), (4, 4), (8, 2)), ((0, 10),))


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    policy=st.sampled_from([*POLICIES.values(), SmallestFirst()]),
    partition=st.one_of(st.none(), st.integers(1, 50)),
    credit=st.one_of(st.none(), st.integers(1, 50)),
)
def test_a_plan_survives_its_journey(
    sizes: list[int], policy: Policy, partition: int | None, credit: int | None
) -> None:
    tensors = tensors_of(*sizes)
    plan = policy.plan(tensors, partition_bytes=partition, credit_bytes=credit)
    read = Plan.from_json(plan.to_json())
    assert read == plan
    assert (read.policy, read.digest()) == (plan.policy, plan.digest())
    read.check(tensors)


def test_a_sequence_survives_its_journey_and_counts_in_the_digest() -> None:
    plan = ReduceScatterAllGather().plan(tensors_of(4))
    static = replace(plan, sequence=((RS, 0), (AG, 0)))
    assert Plan.from_json(static.to_json()) == static
    assert static.digest() != plan.digest()


def test_the_words_for_a_policy_are_never_compared() -> None:
    renamed = replace(ONE, policy="something else")
    assert renamed == ONE
    assert renamed.digest() == ONE.digest()


def document(**changes: object) -> str:
    return json.dumps({**json.loads(ONE.to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON, line 1"),
        ("[]", "must have exactly the fields policy, stages, buckets"),
        ("{}", "must have exactly the fields policy, stages, buckets"),
        (document(speed=1), "must have exactly the fields"),
        (document(policy=None), "policy is None; accepted: words"),
        (document(stages=["SYNC", "SYNC"]), "stages are SYNC, SYNC; accepted: SYNC, or REDUCE_SCATTER, ALL_GATHER"),
        (document(stages=["PUSH"]), r"stages is \['PUSH'\]; accepted: "),
        (document(buckets=[[0], []]), "a bucket is empty"),
        (document(buckets=[["a"]]), "accepted: lists of the tensors' numbers"),
        (document(buckets=[[0], [0]]), "holds a tensor that another holds too"),
        (document(ranks=[[0, 1]]), "ranks must be 1 × 1 numbers"),
        (document(ranks=[[0.5]]), r"ranks is \[\[0.5\]\]; accepted: a list for each stage"),
        (document(partition_bytes=[]), "partition_bytes has 0 values for 1 buckets"),
        (document(partition_bytes=[0]), "partition_bytes=0 must be at least 1"),
        (document(credit_bytes=0), "credit_bytes=0 must be at least 1"),
        (document(credit_bytes=True), "credit_bytes is True; accepted: a whole number or null"),
        (document(step_barrier=1), "step_barrier is 1; accepted: true or false"),
        (document(sequence=[["SYNC", 1]]), "the sequence names SYNC of bucket 1, which the plan does not have"),
        (document(sequence=[["SYNC"]]), r"sequence is \[\['SYNC'\]\]; accepted: null, or a list of \[stage, bucket\]"),
    ],
)
def test_what_is_no_plan_is_refused_with_what_is_accepted(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=f"^not a valid plan: .*{words}"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (lambda: Fifo().plan(tensors_of(4, 4, 4)), "it is for 3 tensors, but there are 2"),
        (lambda: replace(ONE, buckets=((1,),)), r"must hold each of 2 tensors once, they hold \[1\]"),
        (lambda: replace(ByteScheduler().plan(tensors_of(4, 4)), sequence=((SYNC, 0),)), "each of the 2 parts"),
    ],
)
def test_check_says_what_differs(plan: Callable[[], Plan], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan().check(tensors_of(4, 4))
