"""Native jobs on loopback, with ranks as threads."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from legato.core.shards import Deployment
from legato.testing.ports import free_port
from legato.testing.ranks import start_ranks
from legato.transports.native.group import NativeGroup
from legato.transports.native.session import NativeConfig, Server
from legato.transports.rendezvous.member import MemberConfig

T = TypeVar("T")


def job_configs(deployment: Deployment, **member: object) -> list[NativeConfig]:
    """The configurations of all members of one new job on this machine, workers first."""
    base = MemberConfig(
        rank=0,
        deployment=deployment,
        conductor_port=free_port(),
        join_timeout_s=20.0,
        timeout_s=20.0,
    )
    ranks: list[int | None] = [*range(deployment.num_workers), *[None] * deployment.num_servers]
    return [NativeConfig(member=replace(base, rank=rank, **member)) for rank in ranks]  # type: ignore[arg-type]


def run_job(configs: list[NativeConfig], body: Callable[[NativeGroup], T], timeout_s: float = 60.0) -> list[T]:
    """`body` on every worker of a job, servers beside them; results by rank, or the first error."""

    def work(member: int) -> T | None:
        config = configs[member]
        if config.member.rank is None:
            with Server(config) as server:
                server.wait(timeout_s)
            return None
        with NativeGroup(config) as group:
            return body(group)

    futures = start_ranks(len(configs), work)
    workers = configs[0].member.deployment.num_workers
    results = [future.result(timeout_s) for future in futures]
    return results[:workers]  # type: ignore[return-value]
