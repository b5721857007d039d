"""Shares: every item of every tensor is measured by one rank, and all ranks know by which."""

import pytest

from legato.core import Stage, Tensor
from legato.core.policies import by_name
from legato.torch.sync.c10d_measures import Shares


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("partition_bytes", [4, 12, 28, None])
def test_each_item_belongs_to_one_share(num_ranks: int, partition_bytes: int | None) -> None:
    sizes = [5, 0, 1, 17, 3, 2]
    tensors = [
        Tensor(name=str(place), num_bytes=4 * size, priority=place, item_bytes=4) for place, size in enumerate(sizes)
    ]
    buckets = ((3,), (0, 1, 2), (4,), (5,))  # the last is not measured
    plan = by_name("rsag").plan(tensors, partition_bytes=partition_bytes, credit_bytes=None, buckets=buckets)
    all_shares = [Shares(plan, tensors, num_tensors=5, num_ranks=num_ranks, rank=rank) for rank in range(num_ranks)]
    first = all_shares[0]
    for size, stretches in zip(sizes[:5], first.stretches, strict=True):
        items = [item for each in stretches for item in range(each.first, each.first + each.length)]
        assert items == list(range(size))
    told = [(each.rank, each.place) for stretches in first.stretches for each in stretches]
    assert len(set(told)) == len(told)
    for rank, shares in enumerate(all_shares):
        assert shares.stretches == first.stretches
        assert shares.num_told == first.num_told == max(place for _, place in told) + 1
        mine = {place: length for stretches in shares.mine.values() for place, length in stretches}
        expected = [each for stretches in first.stretches for each in stretches if each.rank == rank]
        assert mine == {each.place: each.length for each in expected}
        assert shares.num_parts == len(shares.mine)
    assert plan.stages == (Stage.REDUCE_SCATTER, Stage.ALL_GATHER)
