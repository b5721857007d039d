"""Epochs that do not begin at the first attempt: ranks as threads, over real sockets."""

from dataclasses import replace

import pytest

from legato.core.shards import Deployment
from legato.elastic.membership import Membership
from legato.errors import DeadlineError
from legato.testing.native_job import job_configs
from legato.testing.ranks import run_ranks
from legato.transports.native.player import EngineConfig
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
