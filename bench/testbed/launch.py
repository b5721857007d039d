"""A legato job on a testbed, as a launcher starts it: its members read all they know from their environment."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from bench.testbed.crew import KEY, torchrun_environment
from bench.testbed.testbed import Testbed
from legato.job import Job
from legato.settings import Role, read_settings
from legato.transports.native.group import NativeGroup
from legato.transports.native.session import Server

PORT = 4100


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Who is in the job and where rank 0 is; it travels to the hosts as an argument."""

    num_workers: int
    """Ranks that train, each on a host of its own unless the crew says otherwise."""
    num_servers: int = 0
    """Members that only sum, beside the workers."""
    conductor: str
    """Address of rank 0's host."""
    port: int = PORT
    """Where the conductor listens there."""
    join_timeout_s: float = 60.0
    """How long members may take to gather."""
    shared_memory: bool = True
    """Whether members on one host talk through memory."""
    wire: str = "plain"
    """What protects frames between hosts."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More of every member's environment."""

    def job(self, rank: int) -> Job:
        """One worker's, for `legato.torch.schedule(..., job=)`; several can be open in a process."""
        return Job(read_settings(self.environment(rank)))

    def group(self, rank: int, *, partition_bytes: int | None = None) -> NativeGroup:
        """One worker's engine alone, for what is measured below any framework; its own parts unless told otherwise."""
        config = read_settings(self.environment(rank)).native()
        return NativeGroup(config if partition_bytes is None else replace(config, partition_bytes=partition_bytes))

    @contextmanager
    def served(self, testbed: Testbed) -> Iterator[None]:
        """With its extra servers at work, on the hosts after the workers'."""
        servers = [testbed.spawn(self.num_workers + server, _serve, self) for server in range(self.num_servers)]
        yield
        for server in servers:
            testbed.reap(server)

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of one member; a server overlooks the rank."""
        return {
            **torchrun_environment(rank, self.num_workers, self.conductor, self.port),
            "LEGATO_CONDUCTOR": f"{self.conductor}:{self.port}",
            "LEGATO_SERVERS": str(self.num_servers),
            "LEGATO_MIXED": "1",
            "LEGATO_KEY": KEY,
            "LEGATO_JOIN_TIMEOUT_S": str(self.join_timeout_s),
            "LEGATO_SHARED_MEMORY": str(int(self.shared_memory)),
            "LEGATO_WIRE": self.wire,
            # Hosts share the processors of this machine, and each takes all of them for its own.
            "LEGATO_THREADS": "1",
            **self.variables,
        }


def _serve(launch: Launch) -> None:
    with Server(read_settings(launch.environment(0), role=Role.SERVER).native()) as server:
        server.wait()
