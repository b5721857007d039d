"""The roll: who is in an epoch, and whether those who came after its end may form the next one. Free of I/O."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from legato.errors import PeerLostError
from legato.transports.rendezvous.messages import Peer


@dataclass(frozen=True, slots=True)
class Roll:
    """An epoch. Its workers are in the order of their ranks, which is that of seniority: newcomers come last.

    Learners are workers that do not have the others' state yet. They get every average and give nothing to it. What
    they have is of no use without the epoch, so they do not lead, do not vote, and nobody waits for them after a fault.
    """

    epoch: int
    workers: tuple[Peer, ...]
    servers: tuple[Peer, ...] = ()
    learners: tuple[Peer, ...] = ()

    @property
    def members(self) -> tuple[Peer, ...]:
        return (*self.workers, *self.learners, *self.servers)

    def rank(self, member: Peer) -> int:
        """Learners count on from the workers, and servers from the learners."""
        return self.members.index(member)

    def name(self, member: Peer) -> str:
        kind = "server" if member in self.servers else "learner" if member in self.learners else "rank"
        return f"{kind} {self.rank(member)}"

    def seniors(self, member: Peer) -> tuple[Peer, ...]:
        """Those that lead the next epoch before this one does: for learners and servers, who never do, all workers."""
        return self.workers[: self.rank(member)]


@dataclass(frozen=True, slots=True)
class Census:
    """What a leader knows of the workers of an epoch that has ended: each is in one of the three.

    Servers are not counted: whoever lives may go on with any of them, or with none.
    """

    here: tuple[Peer, ...]
    dead: tuple[Peer, ...]
    """Their hosts say that nobody listens there any more."""
    silent: tuple[Peer, ...]
    """They do not answer: dead with their hosts, or on the other side of a network that has come apart."""

    def check(self, roll: Roll, minimum: int) -> None:
        """A PeerLostError where those who are here must not go on.

        Others may live and think the same of these: so more than half of all that may live must be here. Of two halves
        it is the one with the most senior worker.
        """
        living = len(self.here) + len(self.silent)
        has_most_senior = self.here and self.here[0] == next(each for each in roll.workers if each not in self.dead)
        if 2 * len(self.here) < living or (2 * len(self.here) == living and not has_most_senior):
            raise PeerLostError(
                f"{_ranks(roll, self.silent)} cannot be reached and may live: {len(self.here)} of {living} workers are "
                "not enough to go on without them"
            )
        if len(self.here) < minimum:
            raise PeerLostError(
                f"{len(self.here)} workers are left and LEGATO_ELASTIC asks for {minimum}; "
                f"{_ranks(roll, [*self.dead, *self.silent])} are gone"
            )


def succession(roll: Roll, here: Collection[Peer], newcomers: Sequence[Peer]) -> tuple[Peer, ...]:
    """The workers of the next epoch: seniors keep their order."""
    return (*(each for each in roll.workers if each in here), *newcomers)


def _ranks(roll: Roll, workers: Collection[Peer]) -> str:
    return "ranks " + ", ".join(str(roll.rank(each)) for each in workers)
