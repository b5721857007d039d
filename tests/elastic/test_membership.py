"""Epochs that do not begin at the first attempt: ranks as threads, over real sockets."""

import threading
from dataclasses import replace

import pytest

from legato.core.shards import Deployment
from legato.elastic.membership import Membership
from legato.elastic.muster import Muster
from legato.elastic.server import ElasticServer
from legato.errors import DeadlineError, InputError, MismatchError, PeerLostError
from legato.testing.native_job import job_configs
from legato.testing.ports import free_port
from legato.testing.ranks import run_ranks, start_ranks
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig, Server
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.conductor import Conductor


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


@pytest.mark.parametrize("unlucky", [0, 1, 2], ids=["the leader", "a follower", "the last"])
def test_who_does_not_reach_an_epoch_musters_again_with_the_others(unlucky: int) -> None:
    quick = EngineConfig(heartbeat_s=1.0)
    configs = [replace(config, engine=quick) for config in job_configs(Deployment(num_workers=3))]

    def body(rank: int) -> tuple[int, int]:
        membership = Unlucky(configs[rank], 1, None)
        membership.num_missed = int(rank == unlucky)
        membership.end_epoch()
        membership.regroup(at_boundary=False)
        found = membership.rank, membership.size
        membership.group.barrier()
        membership.close(now=False)
        return found

    assert run_ranks(3, body, timeout_s=60.0) == [(0, 3), (1, 3), (2, 3)]


def test_an_epoch_that_never_begins_is_an_error_in_time() -> None:
    [config] = job_configs(Deployment(num_workers=1), timeout_s=0.5)
    membership = Unlucky(replace(config, engine=EngineConfig(heartbeat_s=0.2)), 1, None)
    membership.num_missed = 10**9
    membership.end_epoch()
    with pytest.raises(DeadlineError, match=r"no epoch could begin within 0\.5 s"):
        membership.regroup(at_boundary=False)
    membership.close(now=True)


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
