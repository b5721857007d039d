"""Static plans: buckets of one kind, a size that goes by the model, and an order that goes by what was recorded."""

from typing import Any

import pytest

from legato.core import Policy, Stage, Tensor
from legato.core.policies import POLICIES
from legato.errors import InputError
from legato.torch.sync.c10d_plan import LEAST_BYTES, MIB, NUM_BUCKETS, StaticConfig, StaticPlanner
from tests.core.plans import SmallestFirst

SYNC = Stage.SYNC
COMPUTE_S = 0.1


def planner(*sizes: int, config: StaticConfig | None = None, kinds: str = "", is_nccl: bool = False) -> StaticPlanner:
    tensors = [Tensor(name=f"t{place}", num_bytes=size, priority=0) for place, size in enumerate(sizes)]
    return StaticPlanner(config or StaticConfig(), tensors, kinds or "a" * len(sizes), num_ranks=2, is_nccl=is_nccl)


def test_auto_goes_by_what_the_backend_can() -> None:
    assert planner(8).policy.name == "bytescheduler"
    assert planner(8, is_nccl=True).policy.name == "rsag"
    assert planner(8, config=StaticConfig(policy="dear")).policy.name == "dear"


@pytest.mark.parametrize("policy", [*POLICIES.values(), SmallestFirst()], ids=lambda policy: policy.name)
def test_every_policy_becomes_a_sequence_of_its_order(policy: Policy) -> None:
    """All gradients at once, one operation at a time: what starts is what ranks first, stage by stage."""
    config = StaticConfig(policy=policy, bucket_bytes=2048, operations_in_flight=1)
    sizes = (4096, 1024, 2048, 8192)
    plan = planner(*sizes, config=config).plan(range(4), ready_s=(0.0,) * 4, bytes_per_s=1e6)
    assert plan.policy == policy.describe()
    assert plan.sequence is not None
    first_stage = [bucket for stage, bucket in plan.sequence if stage is plan.stages[0]]
    ranks = [plan.ranks[0][bucket] for bucket in first_stage]
    # The one that was ready first has started before the others were.
    assert ranks[1:] == sorted(ranks[1:])


def test_buckets_go_by_the_size_of_the_model() -> None:
    assert planner(1000).plan([0]).partition_bytes == (LEAST_BYTES,)
    large = planner(64 * MIB, 64 * MIB).plan([0, 1])
    assert large.partition_bytes == (128 * MIB // NUM_BUCKETS[0],) * 2
    assert large.buckets == ((1,), (0,))


def test_kinds_do_not_mix() -> None:
    plan = planner(8, 8, 8, 8, kinds="abab").plan([0, 1, 2, 3])
    assert sorted(plan.buckets) == [(2, 0), (3, 1)]


def test_what_was_recorded_decides_what_overtakes() -> None:
    """Tensor 1 has four parts, tensor 0 one. Links that are done before 0 comes leave it for the end."""
    config = StaticConfig(policy="bytescheduler", bucket_bytes=1000, operations_in_flight=1, startup_s=0.0)
    made = planner(1000, 4000, config=config)
    slow = made.plan([0, 1], ready_s=(1.5, 0.0), bytes_per_s=2000.0)
    fast = made.plan([0, 1], ready_s=(1.5, 0.0), bytes_per_s=2e6)
    first, second = slow.buckets.index((1,)), slow.buckets.index((0,))
    assert slow.sequence == tuple((SYNC, bucket) for bucket in (first, first, second, first, first))
    assert fast.sequence == tuple((SYNC, bucket) for bucket in (first, first, first, first, second))


def test_where_averages_are_measured_first_halves_go_first() -> None:
    """Both gradients at once, one operation at a time: an average waits until there is nothing left to sum."""
    config = StaticConfig(policy="rsag", bucket_bytes=1000, operations_in_flight=1, startup_s=0.0)
    made = planner(1000, 1000, 1000, config=config)
    sequences = {
        measured: [
            stage
            for stage, _ in made.plan(range(3), ready_s=(0.0,) * 3, bytes_per_s=1e6, measured=measured).sequence or ()
        ]
        for measured in (False, True)
    }
    halves = [Stage.REDUCE_SCATTER, Stage.ALL_GATHER]
    assert sequences[True] == [halves[0]] * 3 + [halves[1]] * 3
    assert sequences[False] != sequences[True]


@pytest.mark.parametrize(
    ("communication_s", "number"),
    [(COMPUTE_S / 40, NUM_BUCKETS[1]), (COMPUTE_S, NUM_BUCKETS[0]), (40 * COMPUTE_S, NUM_BUCKETS[1])],
    ids=["little to send", "as long as computation", "little to compute"],
)
def test_fewer_operations_where_nothing_is_gained_by_more(communication_s: float, number: int) -> None:
    sizes = [4 * MIB] * 32
    made = planner(*sizes, config=StaticConfig(startup_s=0.0))
    ready_s = [(len(sizes) - place) / len(sizes) * 2 / 3 * COMPUTE_S for place in range(len(sizes))]
    plan = made.plan(range(len(sizes)), ready_s=ready_s, bytes_per_s=2 * sum(sizes) / communication_s)
    assert plan.largest_partition_bytes == sum(sizes) // number // 8 * 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policy": "lifo"}, "policy 'lifo' is unknown; accepted: auto, fifo, wfbp, .*, or a policy of your own"),
        ({"bucket_bytes": 0}, "bucket_bytes=0 must be more than 0"),
    ],
)
def test_a_wrong_configuration_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        StaticConfig(**arguments)
