"""Epochs that do not begin at the first attempt: ranks as threads, over real sockets."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from legato.core.shards import Deployment
from legato.elastic import muster, post
from legato.elastic.membership import Membership
from legato.elastic.muster import Muster
from legato.elastic.post import Life
from legato.elastic.server import ElasticServer
from legato.errors import DeadlineError, InputError, MismatchError, PeerLostError
from legato.testing.native_job import job_configs
from legato.testing.ports import free_port
from legato.testing.ranks import run_ranks, start_ranks
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig, Server
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.join import JoinConfig, Joined, Who, dial
from legato.transports.rendezvous.member import Member


class Unlucky(Membership):
    """Does not reach the first epochs that it is called into."""

    num_missed = 0

    def _reach(self, called: m.Called, conductor: Conductor | None = None) -> bool:
        if self.num_missed:
            self.num_missed -= 1
            if conductor is not None:
                conductor.close()
            return False
        return super()._reach(called, conductor)


def regrouped(membership: Membership) -> tuple[int, int]:
    """Its place in the next epoch, in which it then meets the others, and leaves."""
    membership.end_epoch()
    membership.regroup(at_boundary=False)
    found = membership.rank, membership.size
    membership.group.barrier()
    membership.close(now=False)
    return found


@pytest.mark.parametrize("unlucky", [0, 1, 2], ids=["the leader", "a follower", "the last"])
def test_who_does_not_reach_an_epoch_musters_again_with_the_others(unlucky: int) -> None:
    quick = EngineConfig(heartbeat_s=1.0)
    configs = [replace(config, engine=quick) for config in job_configs(Deployment(num_workers=3))]

    def body(rank: int) -> tuple[int, int]:
        membership = Unlucky(configs[rank], 1, None)
        membership.num_missed = int(rank == unlucky)
        return regrouped(membership)

    assert run_ranks(3, body, timeout_s=60.0) == [(0, 3), (1, 3), (2, 3)]


def test_a_loss_is_for_the_next_epoch_as_soon_as_all_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 has left the first epoch when the others look at what they were told before that."""
    configs = job_configs(Deployment(num_workers=3))
    await_it = Member._await

    def look_late(member: Member, predicate: Callable[[], bool], deadline_s: float, what: str) -> None:
        if what == "where the others can be reached" and threading.current_thread() not in early:
            with member._changed:
                assert member._changed.wait_for(lambda: member._error is not None, 30.0)
        await_it(member, predicate, deadline_s, what)

    early: set[threading.Thread] = set()
    monkeypatch.setattr(Member, "_await", look_late)

    def body(rank: int) -> tuple[int, int]:
        if rank == 2:
            early.add(threading.current_thread())
        return regrouped(Membership(configs[rank], 1, None))

    assert run_ranks(3, body, timeout_s=60.0) == [(0, 3), (1, 3), (2, 3)]


def test_an_epoch_that_never_begins_is_an_error_in_time() -> None:
    [config] = job_configs(Deployment(num_workers=1), timeout_s=0.5)
    membership = Unlucky(replace(config, engine=EngineConfig(heartbeat_s=0.2)), 1, None)
    membership.num_missed = 10**9
    membership.end_epoch()
    with pytest.raises(DeadlineError, match=r"no epoch could begin within 0\.5 s"):
        membership.regroup(at_boundary=False)
    membership.close(now=True)


@pytest.mark.parametrize("missing", [{1}, {2}, {1, 2}], ids=["the next in line", "the last", "both"])
def test_who_finds_the_leader_silent_at_first_comes_to_it_when_it_knocks(
    missing: Collection[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = EngineConfig(heartbeat_s=0.5)
    configs = [replace(config, engine=quick) for config in job_configs(Deployment(num_workers=3), timeout_s=10.0)]
    posts: dict[int, m.Peer] = {}
    ready = threading.Barrier(3)
    to_miss = {*missing}
    visit = post.visit

    def miss_it_once(peer: m.Peer, here: m.Here, config: JoinConfig, deadline_s: float) -> tuple[Life, Joined | None]:
        [visitor] = [rank for rank, post in posts.items() if post == here.peer]
        if peer == posts[0] and visitor in to_miss:
            to_miss.remove(visitor)
            return Life.SILENT, None
        return visit(peer, here, config, deadline_s)

    monkeypatch.setattr(muster, "visit", miss_it_once)

    def body(rank: int) -> tuple[int, int]:
        membership = Membership(configs[rank], 1, None)
        posts[rank] = membership._post.peer
        ready.wait(30.0)
        return regrouped(membership)

    assert run_ranks(3, body, timeout_s=60.0) == [(0, 3), (1, 3), (2, 3)]
    assert not to_miss


class Overtaken(Membership):
    """The next epoch begins for the others, and not for the one that leads it."""

    def __init__(self, config: NativeConfig, begun: threading.Barrier) -> None:
        self._begun = begun
        self._fails = True
        self.knocked = threading.Event()
        super().__init__(config, 1, None)

    def _enter(self, config: NativeConfig, conductor: Conductor | None) -> None:
        super()._enter(config, conductor)
        if conductor is not None and self._fails:
            self._fails = False
            self._begun.wait(30.0)
            self.group.close(now=True)
            raise PeerLostError("one of the others has gone")

    def _summoned(self, knocker: str) -> str:
        try:
            return super()._summoned(knocker)
        finally:
            if not self._mustering and self.epoch == 1:
                self.knocked.set()


def test_who_is_in_an_epoch_that_did_not_begin_for_its_leader_comes_when_that_knocks() -> None:
    quick = EngineConfig(heartbeat_s=1.0)
    configs = [replace(config, engine=quick) for config in job_configs(Deployment(num_workers=3), timeout_s=10.0)]
    begun = threading.Barrier(3)

    def body(rank: int) -> tuple[int, int, int]:
        membership = Overtaken(configs[rank], begun)
        membership.end_epoch()
        membership.regroup(at_boundary=False)
        if rank > 0:
            begun.wait(30.0)
            assert membership.knocked.wait(30.0)
            with pytest.raises(PeerLostError):
                membership.group.barrier()
            membership.end_epoch()
            membership.regroup(at_boundary=False)
        found = membership.epoch, membership.rank, membership.size
        membership.group.barrier()
        membership.close(now=False)
        return found

    assert run_ranks(3, body, timeout_s=60.0) == [(2, 0, 3), (2, 1, 3), (2, 2, 3)]


class Unreachable(ElasticServer):
    """Takes part in the first epoch, and does not reach any other."""

    def _enter(self, config: NativeConfig, conductor: Conductor | None) -> None:
        lost = replace(config.member, conductor_port=free_port(), join_timeout_s=0.1)
        super()._enter(replace(config, member=lost) if hasattr(self, "_roll") else config, conductor)


def test_a_server_that_no_epoch_begins_with_ends_and_workers_go_on_without_it() -> None:
    quick = EngineConfig(heartbeat_s=1.0)
    configs = [replace(config, engine=quick) for config in job_configs(Deployment(num_workers=2, num_servers=1))]

    def body(member: int) -> tuple[int, int, int]:
        if member == 2:
            with Unreachable(configs[member], None) as server:
                with pytest.raises(InputError, match="3 epochs in a row did not begin with this server, the last bec"):
                    server.wait()
                return server.epoch, -1, -1
        membership = Membership(configs[member], 1, None)
        assert membership.num_servers == 1
        membership.end_epoch()
        change, _ = membership.regroup(at_boundary=False)
        membership.group.barrier()
        membership.close(now=False)
        return membership.epoch, change.size, membership.num_servers

    assert run_ranks(3, body, timeout_s=60.0) == [(1, 2, 0), (1, 2, 0), (0, -1, -1)]


class Dawdling(ElasticServer):
    """Lives, and does not come to the next epoch before the workers are in it."""

    def __init__(self, config: NativeConfig, begun: threading.Event) -> None:
        self._begun = begun
        super().__init__(config, None)

    def _follow(self, muster: Muster) -> m.Called | None:
        assert self._begun.wait(30.0)
        return super()._follow(muster)


def test_workers_do_not_wait_for_a_server_that_does_not_come() -> None:
    quick = EngineConfig(heartbeat_s=0.5)
    configs = [replace(config, engine=quick) for config in job_configs(Deployment(num_workers=2, num_servers=1))]
    begun, told = threading.Event(), threading.Event()

    def body(member: int) -> int:
        if member == 2:
            with Dawdling(configs[member], begun) as server:
                with pytest.raises(PeerLostError, match=r"was left behind, .*the others gave it up and are in epoch 1"):
                    server.wait()
                told.set()
                return server.epoch
        membership = Membership(configs[member], 1, None)
        membership.end_epoch()
        membership.regroup(at_boundary=False)
        begun.set()
        assert told.wait(30.0)
        membership.group.barrier()
        membership.close(now=False)
        assert membership.num_servers == 0
        return membership.epoch

    assert run_ranks(3, body, timeout_s=60.0) == [1, 1, 0]


def test_a_server_that_is_not_told_that_the_job_is_elastic_is_named() -> None:
    configs = job_configs(Deployment(num_workers=1, num_servers=1))
    worker, server = start_ranks(2, lambda member: Server(configs[1]) if member else Membership(configs[0], 1, None))
    words = "whether the job is elastic: rank 0 says True, server 1 says False"
    for future in (worker, server):
        with pytest.raises(MismatchError, match=words):
            future.result(30.0)


@pytest.mark.parametrize(("num_cuts", "life"), [(1, Life.ALIVE), (2, Life.DEAD)], ids=["once", "again"])
def test_a_greeting_that_is_cut_is_no_sign_of_death(num_cuts: int, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = [None] * num_cuts

    def cut(host: str, port: int, who: Who, config: JoinConfig, deadline_s: float) -> Joined:
        if cuts:
            cuts.pop()
            raise ConnectionResetError("the link broke")
        return dial(host, port, who, config, deadline_s)

    monkeypatch.setattr(post, "dial", cut)
    config = JoinConfig(key=b"a key that only this test has")
    here = post.Post("127.0.0.1", config, lambda _: "", lambda: False)
    try:
        assert post.knock(here.peer, here.peer, config, time.monotonic() + 5.0) is life
    finally:
        here.close()
