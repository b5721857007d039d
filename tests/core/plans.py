"""Strategies: tensors, and plans for them. Not only plans that a policy would write: any that is valid."""

from random import Random

from hypothesis import strategies as st

from legato.core import Plan, Policy, Stage, Tensor
from legato.core.plan import ONE_STAGE, TWO_STAGES
from legato.core.policies import POLICIES
from legato.core.policy import Bucket, Order


class SmallestFirst(Policy):
    """A policy of a user's own."""

    name = "smallest"

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.num_bytes,)


def tensors_of(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(Tensor(name=f"t{place}", num_bytes=4 * size, priority=place) for place, size in enumerate(sizes))


limits = st.one_of(st.none(), st.integers(1, 60))
policies = st.sampled_from([*POLICIES.values(), SmallestFirst()])


@st.composite
def any_plans(draw: st.DrawFn, tensors: tuple[Tensor, ...]) -> Plan:
    """Buckets, ranks, partitions, credit and barriers at random."""
    order = list(range(len(tensors)))
    Random(draw(st.integers(0, 1000))).shuffle(order)
    cuts = sorted(draw(st.sets(st.integers(1, max(len(order) - 1, 1)))) & set(range(1, len(order))))
    buckets = tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True))
    stages = draw(st.sampled_from([ONE_STAGE, TWO_STAGES]))
    ranks = st.tuples(*[st.integers(-2, 4)] * len(buckets))
    return Plan(
        policy="any",
        stages=stages,
        buckets=buckets,
        ranks=tuple(draw(ranks) for _ in stages),
        partition_bytes=tuple(draw(limits) for _ in buckets),
        flat=draw(st.booleans()),
        credit_bytes=draw(limits),
        stage_barrier=draw(st.booleans()),
    )


@st.composite
def written_plans(draw: st.DrawFn, tensors: tuple[Tensor, ...]) -> Plan:
    """What one of the policies writes."""
    return draw(policies).plan(tensors, partition_bytes=draw(limits), credit_bytes=draw(limits))


def plans(tensors: tuple[Tensor, ...]) -> st.SearchStrategy[Plan]:
    return st.one_of(any_plans(tensors), written_plans(tensors))
