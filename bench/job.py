"""A native job on a testbed: which member runs on which host, and how it moves bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.crew import KEY
from bench.testbed import Testbed
from legato.core.shards import Deployment
from legato.transports.group import NativeGroup
from legato.transports.join import JoinConfig
from legato.transports.member import NUM_CONNECTIONS, MemberConfig
from legato.transports.player import EngineConfig
from legato.transports.server import Server
from legato.transports.session import NativeConfig

PORT = 4100


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every member must know; it travels to the hosts as an argument."""

    deployment: Deployment
    """Who is in the job."""
    conductor: str
    """Address of rank 0's host."""
    port: int = PORT
    """Where the conductor listens there."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """How every member moves bytes."""
    partition_bytes: int | None = 262144
    """Largest part."""
    credit_bytes: int | None = None
    """Bytes in flight."""
    num_connections: int = NUM_CONNECTIONS
    """Connections between each two members."""
    join_timeout_s: float = 60.0
    """How long members may take to gather."""
    shared_memory: bool = True
    """Whether members on one host talk through memory."""

    def join(self, rank: int) -> NativeGroup:
        """The group of one worker."""
        return NativeGroup(self.config(rank))

    @contextmanager
    def served(self, testbed: Testbed) -> Iterator[None]:
        """With its extra servers at work, on the hosts after the workers'."""
        first = self.deployment.num_workers
        servers = [testbed.spawn(first + server, _serve, self) for server in range(self.deployment.num_servers)]
        yield
        for server in servers:
            testbed.reap(server)

    def config(self, rank: int | None) -> NativeConfig:
        """What one member is told; without a rank, a server."""
        return NativeConfig(
            member=MemberConfig(
                rank=rank,
                deployment=self.deployment,
                conductor_host=self.conductor,
                conductor_port=self.port,
                join=JoinConfig(key=KEY.encode()),
                num_connections=self.num_connections,
                shared_memory=self.shared_memory,
                join_timeout_s=self.join_timeout_s,
            ),
            engine=self.engine,
            partition_bytes=self.partition_bytes,
            credit_bytes=self.credit_bytes,
        )


def _serve(job: Job) -> None:
    with Server(job.config(None)) as server:
        server.wait()
