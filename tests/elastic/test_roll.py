"""Who may form the next epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.elastic.roll import Census, Roll, succession
from legato.errors import PeerLostError
from legato.transports.rendezvous.messages import Peer

WORKERS = tuple(Peer(str(number), "127.0.0.1", 1000 + number) for number in range(6))
A, B, C, D = WORKERS[:4]
ROLL = Roll(3, (A, B, C, D))


def may_go_on(census: Census, minimum: int = 1) -> bool:
    try:
        census.check(ROLL, minimum)
    except PeerLostError:
        return False
    return True


def test_the_dead_do_not_count() -> None:
    assert may_go_on(Census((D,), (A, B, C), ()))


def test_more_than_half_of_those_who_may_live_go_on() -> None:
    assert may_go_on(Census((B, C, D), (), (A,)))
    assert not may_go_on(Census((B,), (), (A, C, D)))


def test_of_two_halves_the_one_with_the_most_senior_goes_on() -> None:
    assert may_go_on(Census((A, B), (), (C, D)))
    assert not may_go_on(Census((C, D), (), (A, B)))
    assert may_go_on(Census((B,), (A, C), (D,)))


def test_fewer_than_asked_for_do_not() -> None:
    with pytest.raises(PeerLostError, match="1 workers are left and LEGATO_ELASTIC asks for 2; ranks 0, 1, 2 are gone"):
        Census((D,), (A, B, C), ()).check(ROLL, 2)


@given(st.lists(st.sampled_from(["left", "right", "dead"]), min_size=4, max_size=4))
def test_never_both_sides_of_a_network_that_has_come_apart(where: list[str]) -> None:
    left, right, dead = (
        tuple(worker for worker, side in zip(ROLL.workers, where, strict=True) if side == name)
        for name in ("left", "right", "dead")
    )
    sides = [Census(here, dead, there) for here, there in ((left, right), (right, left)) if here]
    assert sum(map(may_go_on, sides)) == (1 if sides else 0)


def test_seniors_keep_their_order_and_newcomers_come_last() -> None:
    newcomer = WORKERS[5]
    assert succession(ROLL, {D, B}, [newcomer]) == (B, D, newcomer)


def test_a_server_follows_all_workers_and_leads_nobody() -> None:
    roll = Roll(3, (A, B), (C, D))
    assert [roll.seniors(each) for each in roll.members] == [(), (A,), (A, B), (A, B)]
    assert [roll.name(each) for each in roll.members] == ["rank 0", "rank 1", "server 2", "server 3"]


def test_a_learner_follows_all_workers_and_is_counted_by_nobody() -> None:
    roll = Roll(3, (A, B), (D,), learners=(C,))
    assert [roll.seniors(each) for each in roll.members] == [(), (A,), (A, B), (A, B)]
    assert [roll.name(each) for each in roll.members] == ["rank 0", "rank 1", "learner 2", "server 3"]
    Census((A,), (), (B,)).check(roll, 1)


def test_servers_do_not_vote() -> None:
    """Of two workers and two servers, the more senior worker alone may go on; the other may not, with both servers."""
    roll = Roll(3, (A, B), (C, D))
    Census((A,), (), (B,)).check(roll, 1)
    with pytest.raises(PeerLostError, match="1 of 2 workers are not enough"):
        Census((B,), (), (A,)).check(roll, 1)
