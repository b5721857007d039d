"""Which ranks of an elastic job start again: decisions alone, without processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.launch.restarts import Elastic, Members, State


def ranks_of(elastic: Elastic) -> Members:
    """All have started at 0 s."""
    ranks = Members(elastic, 0.0)
    for rank in ranks.due(0.0):
        ranks.started(rank, 0.0)
    return ranks


def test_pauses_grow_while_a_rank_fails_soon() -> None:
    ranks = ranks_of(Elastic(min_workers=1, max_workers=2))
    pauses, now_s = [], 0.0
    for lived_s in (1, 1, 1, 1, 1, 1, 100, 1):
        now_s += lived_s
        pause_s = ranks.failed(1, now_s)
        assert pause_s is not None
        pauses.append(pause_s)
        assert ranks.next_s() == now_s + pause_s
        assert ranks.due(now_s) == []
        now_s += pause_s
        assert ranks.due(now_s) == [1]
        ranks.started(1, now_s)
    assert pauses == [0.5, 1, 2, 4, 8, 8, 0.5, 1]


def test_so_many_restarts_in_all() -> None:
    ranks = ranks_of(Elastic(min_workers=2, max_workers=3, restarts=1))
    assert ranks.failed(2, 1.0) == 0.5
    ranks.started(2, 1.5)
    assert ranks.failed(0, 1000.0) is None
    assert (ranks.num_left, ranks.is_over) == (2, False)
    assert ranks.failed(1, 1000.0) is None
    assert (ranks.num_left, ranks.is_enough, ranks.is_over) == (1, False, True)


@given(st.lists(st.floats(0.0, 20.0), min_size=30, max_size=60))
def test_no_more_than_ten_restarts_in_any_minute(lives_s: list[float]) -> None:
    ranks = ranks_of(Elastic(min_workers=1, max_workers=2))
    restarts_s: list[float] = []
    now_s = 0.0
    for lived_s in lives_s:
        now_s += lived_s
        pause_s = ranks.failed(1, now_s)
        if pause_s is None:
            assert sum(now_s - each < 60.0 for each in restarts_s) == 10
            return
        restarts_s.append(now_s)
        assert sum(now_s - each < 60.0 for each in restarts_s) <= 10
        now_s += pause_s
        ranks.started(1, now_s)


def test_the_job_is_over_when_all_are_done() -> None:
    ranks = ranks_of(Elastic(min_workers=2, max_workers=2))
    ranks.finished(0)
    assert not ranks.is_over
    ranks.finished(1)
    assert ranks.is_over
    assert ranks.is_enough


@pytest.mark.parametrize("done_first", [True, False])
def test_nobody_comes_back_to_a_job_that_has_finished(done_first: bool) -> None:
    ranks = ranks_of(Elastic(min_workers=1, max_workers=2))
    if done_first:
        ranks.finished(0)
        assert ranks.failed(1, 1.0) is None
    else:
        assert ranks.failed(1, 1.0) == 0.5
        ranks.finished(0)
    assert (ranks.count(State.DONE), ranks.count(State.LOST)) == (1, 1)
    assert ranks.is_over
    assert ranks.is_enough


def test_all_start_anew_or_none() -> None:
    ranks = ranks_of(Elastic(min_workers=1, max_workers=2, restarts=2))
    assert [ranks.failed(rank, 1.0) for rank in range(2)] == [0.5, 0.5]
    assert ranks.due(1.5) == [0, 1]
    ranks = ranks_of(Elastic(min_workers=1, max_workers=2, restarts=1))
    assert [ranks.failed(rank, 1.0) for rank in range(2)] == [0.5, None]
    assert (ranks.num_left, ranks.is_over) == (0, True)


def test_servers_start_again_within_the_same_limit_and_are_not_needed() -> None:
    ranks = ranks_of(Elastic(min_workers=2, max_workers=2, restarts=2, num_servers=2))
    assert ranks.failed(2, 1.0) == 0.5
    assert (ranks.due(1.5), ranks.num_left) == ([2], 2)
    ranks.started(2, 1.5)
    assert ranks.failed(0, 2.0) == 0.5
    ranks.started(0, 2.5)
    assert ranks.failed(3, 3.0) is None
    assert (ranks.num_left, ranks.is_enough, ranks.is_over) == (2, True, False)
    for rank in range(2):
        ranks.finished(rank)
    assert (ranks.is_enough, ranks.is_over) == (True, True), "whatever servers do"


def test_a_job_does_not_begin_anew_without_a_server_that_is_given_up() -> None:
    ranks = ranks_of(Elastic(min_workers=1, max_workers=1, restarts=1, num_servers=1))
    assert ranks.failed(1, 1.0) == 0.5
    ranks.started(1, 1.5)
    assert ranks.failed(1, 2.0) is None
    assert not ranks.is_over
    assert ranks.failed(0, 100.0) is None
    assert (ranks.is_enough, ranks.is_over) == (False, True)
    ranks = ranks_of(Elastic(min_workers=1, max_workers=1, num_servers=1))
    assert [ranks.failed(member, 1.0) for member in (0, 1)] == [0.5, 0.5]
    assert ranks.due(1.5) == [0, 1]
