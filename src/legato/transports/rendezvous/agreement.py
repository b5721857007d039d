"""What the conductor knows and decides, free of sockets, threads and clocks: messages and the time in, messages out.

everybody joined             everybody connected             everybody left
GATHERING ───────► CONNECTING ─────────► RUNNING ─────────────────► OVER
    └── somebody missing at the deadline, or members that contradict each other ──┘
"""

from collections.abc import Collection
from dataclasses import replace
from enum import Enum, auto

from legato.core.shards import Deployment
from legato.errors import ClosedError, DeadlineError, EvictedError, JobError, LegatoError, PeerLostError, ProtocolError
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.plan_rounds import PlanRounds
from legato.transports.rendezvous.roster import Roster
from legato.transports.rendezvous.stalls import Stalls
from legato.transports.rendezvous.stragglers import Eviction, Stragglers
from legato.transports.rendezvous.tensor_registry import TensorRegistry

Outgoing = tuple[int | None, m.FromConductor]
"""A message and the member it goes to; None is everybody."""


class Phase(Enum):
    GATHERING = auto()
    CONNECTING = auto()
    RUNNING = auto()
    OVER = auto()


class Agreement:
    """One job, from the first member that joins to the last that leaves."""

    def __init__(
        self,
        *,
        deployment: Deployment,
        common: tuple[tuple[str, str], ...],
        job: str,
        join_timeout_s: float,
        timeout_s: float,
        now_s: float,
        evicts: bool = False,
    ) -> None:
        self.phase = Phase.GATHERING
        self.roster = Roster(deployment, common)
        self._deployment = deployment
        self._job = job
        self._gather_until_s = now_s + join_timeout_s
        self._join_timeout_s = join_timeout_s
        self._ledger = TensorRegistry(
            num_workers=deployment.num_workers, num_members=deployment.num_members, timeout_s=timeout_s
        )
        self._rounds = PlanRounds(
            num_workers=deployment.num_workers, num_members=deployment.num_members, timeout_s=timeout_s
        )
        self._stalls = Stalls(self.roster.name)
        self._stragglers = Stragglers(self.roster.name, evicts=evicts)
        self._timeout_s = timeout_s
        self._connected: set[int] = set()
        self._posts: dict[int, m.Peer] = {}
        self._posts_until_s: float | None = None
        """When some have told where they can be reached, and others have not."""
        self._left: set[int] = set()
        self._verdict: LegatoError | None = None
        self._untold = 0

    def hello(self, hello: m.Hello) -> tuple[int, list[Outgoing]]:
        """A member joins: its number, and what is to be said. Raises what is wrong with it."""
        if self._verdict is not None:
            self._untold -= 1
            if not self._untold:
                self.phase = Phase.OVER
            raise self._verdict
        if self.phase is not Phase.GATHERING:
            raise ClosedError("the job has begun already: nobody can join it any more")
        member = self.roster.join(hello)
        if not self.roster.complete:
            return member, []
        self.phase = Phase.CONNECTING
        roster = self.roster
        return member, [
            (number, m.Welcome(number, self._job, roster.addresses, roster.hosts, roster.doors))
            for number in range(self._deployment.num_members)
        ]

    def received(self, member: int, message: m.Message, now_s: float) -> list[Outgoing]:
        """A member says something."""
        answers: list[m.FromConductor] = []
        match message:
            case m.Connected():
                return self._connect(member)
            case m.OwnPost(peer):
                return self._gather_post(member, peer, now_s)
            case m.Leave(steps):
                return self._leave(member, steps)
            case m.Failed(error):
                return self.fail(self._cause(error.error()))
            case m.Waiting():
                known = self._rounds.missing if message.tensor is None else self._ledger.missing(message.tensor)
                missing = message.missing or known
                self._stalls.waiting(member, replace(message, missing=missing), now_s)
                return []
            case m.Resumed():
                self._stalls.resumed(member)
                return []
            case m.Pace():
                said = self._stragglers.pace(member, message, self._num_staying, now_s)
                return [self._evict(each) if isinstance(each, Eviction) else (0, each) for each in said]
            case m.WindowReport(from_step, text):
                return [(0, m.WindowReported(member, from_step, text))]
            case m.Note(text):
                return [(None, m.Noted(member, text))]
            case m.Declare(tensors):
                answers += self._ledger.declare(member, tensors, now_s)
            case m.Defined(ids):
                answers += self._ledger.defined(member, ids)
            case m.Propose():
                answers += self._rounds.propose(member, message, now_s)
            case m.Vote():
                answers += self._rounds.vote(member, message)
            case m.Applied():
                answers += self._rounds.applied(member, message)
            case _:
                raise ProtocolError(f"{self.roster.name(member)} sent a {type(message).__name__} message", rank=member)
        return [(None, answer) for answer in answers]

    def gone(self, member: int, reason: str) -> list[Outgoing]:
        """A member's connection has ended."""
        if self.phase is Phase.GATHERING:
            self.roster.leave(member)
            return []
        if self.phase is Phase.OVER or member in self._left:
            return []
        error = PeerLostError(f"{self.roster.name(member)} is gone ({reason}); see its log for why", rank=member)
        return self._lose(member, error)

    def fail(self, error: LegatoError) -> list[Outgoing]:
        """End the job for everybody."""
        self.phase = Phase.OVER
        return [(None, m.Fatal(m.ErrorText.of(error)))]

    def _evict(self, eviction: Eviction) -> Outgoing:
        """It hears why, and goes; to the others it is a lost member."""
        error = EvictedError(f"{eviction.text}; look at its machine before you start it again", rank=eviction.member)
        return eviction.member, m.Fatal(m.ErrorText.of(error))

    def _cause(self, error: LegatoError) -> LegatoError:
        """Ranks that wait for each other would each blame another: where one was late, all hear one verdict."""
        verdict = self._stalls.verdict(self._timeout_s) if isinstance(error, DeadlineError) else None
        return verdict or error

    def doom(self, error: LegatoError) -> list[Outgoing]:
        """A job that cannot begin: those who are here are told, and those who come, until all have been."""
        self._verdict = error
        self._untold = len(self.roster.missing()) - 1  # the one that was found out knows
        if not self._untold:
            self.phase = Phase.OVER
        return [(None, m.Fatal(m.ErrorText.of(error)))]

    @property
    def is_doomed(self) -> bool:
        return self._verdict is not None

    def expire(self, now_s: float) -> list[Outgoing]:
        """Give up what has waited too long."""
        if self.phase in (Phase.GATHERING, Phase.CONNECTING) and self._gather_until_s <= now_s:
            return self.fail(self._verdict or self._absence())
        if self._posts_until_s is not None and self._posts_until_s <= now_s:
            return self.fail(self._late(self._posts.keys(), "did not say where they can be reached"))
        try:
            answers: list[m.FromConductor] = [
                *self._ledger.expire(now_s),
                *self._rounds.expire(now_s),
                *self._stalls.expire(now_s),
            ]
        except DeadlineError as error:
            return self.fail(error)
        return [(None, answer) for answer in answers]

    def deadline_s(self) -> float | None:
        """When `expire` is next needed."""
        gathering = self.phase in (Phase.GATHERING, Phase.CONNECTING)
        times = (
            self._gather_until_s if gathering else None,
            self._posts_until_s,
            self._ledger.deadline_s(),
            self._rounds.deadline_s(),
            self._stalls.deadline_s(),
        )
        return min((time for time in times if time is not None), default=None)

    def left_s(self, now_s: float) -> float:
        """How long the members may still take to gather."""
        return max(self._gather_until_s - now_s, 0.0)

    @property
    def _num_staying(self) -> int:
        """Workers that have not left."""
        return len(set(range(self._deployment.num_workers)) - self._left)

    def _connect(self, member: int) -> list[Outgoing]:
        self._connected.add(member)
        if self.phase is not Phase.CONNECTING or len(self._connected) < self._deployment.num_members:
            return []
        self.phase = Phase.RUNNING
        return [(None, m.Begin())]

    def _gather_post(self, member: int, peer: m.Peer, now_s: float) -> list[Outgoing]:
        self._posts[member] = peer
        if len(self._posts) < self._deployment.num_members:
            self._posts_until_s = self._posts_until_s or now_s + self._join_timeout_s
            return []
        self._posts_until_s = None
        return [(None, m.AllPosts(tuple(self._posts[number] for number in sorted(self._posts))))]

    def _leave(self, member: int, steps: tuple[tuple[str, int], ...]) -> list[Outgoing]:
        error = ClosedError(f"{self.roster.name(member)} has left the job", rank=member)
        if member >= self._deployment.num_workers:
            return self._lose(member, error)
        self._left.add(member)
        answers = [m.Left(member, steps), *self._ledger.gone(member, error), *self._rounds.left(member, error)]
        return [*((None, answer) for answer in answers), *self._farewell()]

    def _lose(self, member: int, error: JobError) -> list[Outgoing]:
        """A member is gone that others still count on."""
        self._left.add(member)
        lost = m.Fatal(m.ErrorText.of(error))
        answers = [lost, *self._ledger.gone(member, error), *self._rounds.member_lost(error)]
        return [*((None, answer) for answer in answers), *self._farewell()]

    def _farewell(self) -> list[Outgoing]:
        """Servers stay while a worker does; after the last one everybody may go."""
        if not set(range(self._deployment.num_workers)) <= self._left:
            return []
        self.phase = Phase.OVER
        return [(None, m.AllLeft())]

    def _absence(self) -> DeadlineError:
        if self.phase is not Phase.GATHERING:
            words = "could not connect to the other members; is a firewall, or the wrong interface, between them?"
            return self._late(self._connected, words)
        words = f"{self.roster.words()} within {self._join_timeout_s:g} s"
        return DeadlineError(words, rank=self.roster.missing()[0])

    def _late(self, prompt: Collection[int], what: str) -> DeadlineError:
        """Of members that did not do in time what others did."""
        missing = [member for member in range(self._deployment.num_members) if member not in prompt]
        names = ", ".join(map(self.roster.name, missing))
        return DeadlineError(f"{names} {what} within {self._join_timeout_s:g} s", rank=missing[0])
