"""What each policy of the literature plans, on small cases that can be checked by hand."""

import pytest

from legato.core import Tensor, Timing
from legato.core.fusion import fill, merge_small
from legato.core.policies import P3, POLICIES, ByteScheduler, MergedWaitFree, TicTac, WaitFree, by_name
from legato.core.policies.by_arrival import merge_while_cheap
from legato.core.policies.tictac import tac, tic
from legato.errors import InputError

MIB = 1 << 20


def tensors_of(*sizes: int, priorities: tuple[int, ...] | None = None) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=f"t{place}", num_bytes=size, priority=place if priorities is None else priorities[place])
        for place, size in enumerate(sizes)
    )


def test_ddp_fills_buckets_from_the_last_layer_and_lets_the_tensor_that_reaches_the_cap_in() -> None:
    tensors = tensors_of(*[10 * MIB] * 6)
    assert WaitFree().plan(tensors).buckets == ((5,), (4, 3, 2), (1, 0))


def test_buckets_of_small_tensors_stay_below_their_limit() -> None:
    assert merge_small(tensors_of(4, 4, 40, 4, 4), 9 + 3) == ((4, 3), (2,), (1, 0))
    assert fill(tensors_of(4, 4), 100) == ((1, 0),)


def test_mgwfbp_merges_where_waiting_is_cheaper_than_a_start_up() -> None:
    """Backward takes 1 s a layer, a start-up 3 s: two layers are waited for, then the link is busy."""
    tensors = tensors_of(4, 4, 4, 4)
    timing = Timing(forward_s=(0,) * 4, backward_s=(1,) * 4, startup_s=3, seconds_per_byte=0)
    assert merge_while_cheap(tensors, timing) == ((3, 2, 1, 0),)
    dear_bytes = Timing(forward_s=(0,) * 4, backward_s=(1,) * 4, startup_s=0.5, seconds_per_byte=0)
    assert merge_while_cheap(tensors, dear_bytes) == ((3,), (2,), (1,), (0,))
    busy_link = Timing(forward_s=(0,) * 4, backward_s=(1,) * 4, startup_s=0.5, seconds_per_byte=0.625)
    assert merge_while_cheap(tensors, busy_link) == ((3,), (2, 1, 0))


def test_mgwfbp_without_timing_merges_nothing() -> None:
    assert MergedWaitFree().plan(tensors_of(4, 4)).buckets == ((0,), (1,))


def test_p3_has_one_small_slice_in_flight() -> None:
    plan = P3().plan(tensors_of(4))
    assert (plan.partition_bytes, plan.credit_bytes) == ((160 * 1024,), 1)


def test_tic_ranks_by_the_graph_alone() -> None:
    tensors = tensors_of(4, 4, 4, 4, priorities=(2, 0, 1, 1))
    assert tic(tensors) == (3, 0, 1, 2)


def test_tic_and_tac_follow_a_chain() -> None:
    tensors = tensors_of(400, 40, 4, priorities=(2, 1, 0))
    timing = Timing(forward_s=(1, 1, 1), backward_s=(2, 2, 2), seconds_per_byte=0.1)
    assert tic(tensors) == (2, 1, 0)
    assert tac(tensors, timing) == (2, 1, 0)


def test_tac_takes_the_transfers_of_the_first_operation_together() -> None:
    tensors = tensors_of(8, 4, 4, priorities=(0, 0, 1))
    timing = Timing(forward_s=(1, 1, 1), backward_s=(1, 1, 1), seconds_per_byte=1)
    assert set(tac(tensors, timing)[:2]) == {0, 1}


def test_tictac_sends_one_whole_tensor_at_a_time() -> None:
    plan = TicTac().plan(tensors_of(8, 8))
    assert (plan.partition_bytes, plan.credit_bytes) == ((None, None), 1)


def test_bytescheduler_merges_only_when_told() -> None:
    tensors = tensors_of(4, 4)
    assert ByteScheduler().plan(tensors).buckets == ((0,), (1,))
    assert ByteScheduler(fusion_bytes=8).plan(tensors).buckets == ((1, 0),)


def test_every_policy_plans_for_every_tensor() -> None:
    tensors = tensors_of(3 * MIB, 8, 30 * MIB, 0, 4)
    for policy in POLICIES.values():
        policy.plan(tensors).check(tensors)


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(InputError, match="policy 'lifo' is unknown; accepted: fifo, wfbp"):
        by_name("lifo")


def test_digests_tell_plans_apart() -> None:
    tensors = tensors_of(8, 8)
    plans = [policy.plan(tensors) for policy in POLICIES.values()]
    plans += [ByteScheduler().plan(tensors, partition_bytes=4), ByteScheduler(fusion_bytes=16).plan(tensors)]
    assert len({plan.digest() for plan in plans}) == len(plans)
    assert ByteScheduler().plan(tensors).digest() == ByteScheduler().plan(tensors).digest()
