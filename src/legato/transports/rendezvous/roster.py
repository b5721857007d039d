"""The roster: who has joined, and who is missing."""

from legato.core.shards import Deployment
from legato.errors import InputError, MismatchError
from legato.transports.rendezvous import hosts
from legato.transports.rendezvous.addresses import text
from legato.transports.rendezvous.messages import Hello


class Roster:
    """Gives every member its number: a worker's is its rank, servers are numbered as they come."""

    def __init__(self, deployment: Deployment, common: tuple[tuple[str, str], ...]) -> None:
        self._deployment = deployment
        self._common = dict(common)
        self._members: dict[int, Hello] = {}

    def join(self, hello: Hello) -> int:
        """The number of a new member; an error when it cannot be one."""
        member = self._number(hello)
        for name, value in hello.common:
            expected = self._common.get(name)
            if value != expected:
                raise MismatchError(
                    f"{name}: rank 0 says {expected}, {self.name(member)} says {value}; all members must agree on it",
                    rank=member,
                )
        self._members[member] = hello
        return member

    def leave(self, member: int) -> None:
        """Forget a member that went away before the job began: it may come again."""
        self._members.pop(member, None)

    def name(self, member: int) -> str:
        return f"rank {member}" if member < self._deployment.num_workers else f"server {member}"

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where the members listen, by number."""
        return tuple((hello.host, hello.port) for _, hello in sorted(self._members.items()))

    @property
    def hosts(self) -> tuple[int, ...]:
        """The host of each member, by number."""
        return hosts.number([hello.identity for _, hello in sorted(self._members.items())])

    @property
    def doors(self) -> tuple[str, ...]:
        """Where the members listen on their hosts, by number."""
        return tuple(hello.door for _, hello in sorted(self._members.items()))

    @property
    def complete(self) -> bool:
        return len(self._members) == self._deployment.num_members

    def missing(self) -> list[int]:
        return [member for member in range(self._deployment.num_members) if member not in self._members]

    def words(self) -> str:
        """`2/4 workers joined, missing 2, 3`, and the servers where there are any."""
        num_workers, num_servers = self._deployment.num_workers, self._deployment.num_servers
        absent = [str(member) for member in self.missing() if member < num_workers]
        line = f"{num_workers - len(absent)}/{num_workers} workers joined"
        if absent:
            line += f", missing {', '.join(absent)}"
        if num_servers:
            present = sum(member >= num_workers for member in self._members)
            line += f"; {present}/{num_servers} servers joined"
        return line

    def _number(self, hello: Hello) -> int:
        num_workers, num_members = self._deployment.num_workers, self._deployment.num_members
        if hello.rank is None:
            free = [member for member in range(num_workers, num_members) if member not in self._members]
            if not free:
                raise InputError(f"all {self._deployment.num_servers} servers have joined already")
            return free[0]
        if not 0 <= hello.rank < num_workers:
            raise InputError(f"rank is {hello.rank}, with {num_workers} workers it must be 0 to {num_workers - 1}")
        if hello.rank in self._members:
            first = self._members[hello.rank]
            raise InputError(
                f"rank {hello.rank} has joined already, from {text(first.host, first.port)}; "
                "every worker needs a rank of its own"
            )
        return hello.rank
