"""Plans for the engine: what `auto` makes of the speed of a link, and how tuners' choices are fused."""

import pytest

from legato.core import Plan
from legato.core.fusion import merge_small
from legato.core.policies import POLICIES
from legato.errors import InputError, PlanError
from legato.exchange.planner import FUSION_BYTES, NativePlanner
from legato.tuning.candidate import BASELINE, Candidate
from tests.core.plans import tensors_of

KIB = 1 << 10
TENSORS = tensors_of(1000, 20, 300_000, 5, 90_000, 7)


@pytest.mark.parametrize(
    ("gbps", "kib"), [(None, 256), (0.001, 16), (0.1, 32), (0.5, 128), (1, 256), (100, 256)], ids=str
)
def test_a_part_is_short_on_a_slow_link(gbps: float | None, kib: int) -> None:
    planner = NativePlanner(bytes_per_s=None if gbps is None else gbps / 8 * 1e9)
    assert set(planner.write(TENSORS, 256 * KIB).partition_bytes) == {kib * KIB}


def test_whoever_asks_for_a_partition_gets_it_on_any_link() -> None:
    planner = NativePlanner(partition_bytes=512 * KIB, bytes_per_s=1e6)
    assert set(planner.write(TENSORS, 256 * KIB).partition_bytes) == {512 * KIB}


def test_auto_merges_small_neighbours_and_limits_nothing() -> None:
    plan = NativePlanner().write(TENSORS, 256 * KIB)
    assert plan.buckets == merge_small(TENSORS, FUSION_BYTES)
    assert plan.credit_bytes is None
    assert not plan.flat


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_policy_does_not_cut_is_spread_over_the_servers(policy: str) -> None:
    plan = NativePlanner(policy=policy).write(TENSORS, 256 * KIB)
    own = POLICIES[policy].plan(TENSORS)
    assert plan.buckets == own.buckets
    assert plan.ranks == own.ranks
    assert plan.partition_bytes == tuple(256 * KIB if each is None else each for each in own.partition_bytes)


def test_a_tensor_that_a_policy_leaves_whole_has_a_part_for_each_owner() -> None:
    tensors = tensors_of(30 << 18, 1 << 8)
    whole = POLICIES["rsag"].plan(tensors)
    assert max(each for each in whole.partition_bytes if each is not None) > 30 << 20
    plan = NativePlanner(policy="rsag").write(tensors, 256 * KIB, 4)
    assert plan.partition_bytes[plan.bucket_of[0]] == (30 << 20) // 4
    asked = NativePlanner(policy="rsag", partition_bytes=32 << 20).write(tensors, 256 * KIB, 4)
    assert asked.partition_bytes[asked.bucket_of[0]] == 32 << 20


def test_what_a_tuner_has_chosen_is_fused_like_the_first_plan() -> None:
    plan = NativePlanner().follow(Candidate("bytescheduler", 64 * KIB, 256 * KIB), TENSORS, 256 * KIB)
    assert plan.buckets == merge_small(TENSORS, FUSION_BYTES)
    assert (set(plan.partition_bytes), plan.credit_bytes) == ({64 * KIB}, 256 * KIB)


def test_contributions_go_before_sums_unless_somebody_asks_for_another_order() -> None:
    chosen = Candidate("bytescheduler", 64 * KIB, 256 * KIB)
    for plan in (NativePlanner().write(TENSORS, None), NativePlanner().follow(chosen, TENSORS, None)):
        contributions, sums = plan.ranks
        assert max(contributions) < min(sums)
    [order] = NativePlanner(policy="bytescheduler").follow(chosen, TENSORS, None).ranks
    assert sorted(order) == list(range(len(plan.buckets)))


def test_the_baseline_waits_for_all_and_is_cut_like_the_first_plan() -> None:
    plan = NativePlanner().follow(BASELINE, TENSORS, 256 * KIB)
    assert plan.step_barrier
    assert set(plan.partition_bytes) == {256 * KIB}


def test_a_plan_for_other_tensors_is_refused() -> None:
    given = Plan(buckets=((0,), (1,)), ranks=((0, 0),), partition_bytes=(None, None))
    with pytest.raises(PlanError, match="for 2 tensors, but there are 6"):
        NativePlanner(given=given).write(TENSORS, None)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InputError, match="policy 'p4' is unknown"):
        NativePlanner(policy="p4")
