"""What survivors conclude when an epoch ends: exact cases, and thousands of simulated schedules with faults."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.elastic.progress import Gift, Progress, settle
from legato.errors import ProtocolError
from legato.testing.simulated_epochs import inject


def progress(begun: list[int], completed: list[int], order: list[int] | None = None) -> Progress:
    return Progress(tuple(begun), tuple(completed), (False,) * len(begun), None if order is None else tuple(order))


def test_who_has_an_average_gives_it_to_those_who_lack_it() -> None:
    # Tensor 0 is complete on rank 1 only, tensor 1 on none; rank 1 has begun one more step of tensor 2.
    settlement = settle([progress([5, 5, 4], [4, 4, 4]), progress([5, 5, 5], [5, 4, 4])])
    assert settlement.completed == (5, 4, 4)
    assert settlement.gifts == (Gift(0, 1),)


def test_the_order_is_known_to_all_when_one_knows_it() -> None:
    assert settle([progress([1], [1]), progress([1], [1], [0])]).order == (0,)
    assert settle([progress([1], [1]), progress([1], [1])]).order is None


@pytest.mark.parametrize(
    "behind", [progress([5], [3]), progress([4], [4])], ids=["two steps", "without a contribution"]
)
def test_ranks_that_cannot_have_come_so_far_are_refused(behind: Progress) -> None:
    with pytest.raises(ProtocolError, match="cannot go on together"):
        settle([progress([5], [5]), behind])


def test_it_travels_as_text() -> None:
    mine = progress([3, 2], [2, 2], [1, 0])
    assert Progress.from_json(mine.to_json()) == mine


@given(seed=st.integers(0, 2**32))
def test_no_schedule_of_faults_makes_ranks_differ_or_loses_a_gradient(seed: int) -> None:
    inject(seed, num_faults=30)
