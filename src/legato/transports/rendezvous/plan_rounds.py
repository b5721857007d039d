"""Plan rounds: how all members take a new plan at the same step, or none does.

Kept by the conductor and free of I/O; one round at a time:

    proposed           by all who must       all would do the same           all have done it
    ───────► GATHERING ───────────► PREPARING ────────────────────► COMMITTING ───────────► done
                 │                       │ a refusal, different digests, a member lost or late
                 └───────────────────────┴────────► aborted: nothing has changed anywhere

Between `Prepare` and `Done` or `Abort` a member lets no task of `from_step` or later begin, so none can travel by the
old plan here and by the new one there. A plan comes from one rank (a tuner beside rank 0), or, with `everyone`, from a
line that all ranks run: then they are compared first.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from legato.errors import DeadlineError, JobError, LegatoError, MismatchError, PlanError
from legato.transports.rendezvous.messages import Abort, Applied, Commit, Done, ErrorText, Prepare, Propose, Vote

Broadcast = Prepare | Commit | Done | Abort


class RoundState(Enum):
    GATHERING = auto()
    PREPARING = auto()
    COMMITTING = auto()


@dataclass(slots=True)
class _Round:
    proposal: Propose
    deadline_s: float
    state: RoundState = RoundState.GATHERING
    proposers: set[int] = field(default_factory=set)
    digests: dict[int, str] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)


class PlanRounds:
    """Proposals and votes in, broadcasts to every member out."""

    def __init__(self, *, num_workers: int, num_members: int, timeout_s: float) -> None:
        self._num_workers = num_workers
        self._num_members = num_members
        self._timeout_s = timeout_s
        self._number = 0
        self._open: _Round | None = None
        self._last: Propose | None = None
        self._left: dict[int, JobError] = {}

    def propose(self, rank: int, proposal: Propose, now_s: float) -> list[Broadcast]:
        """A rank asks for a plan."""
        if self._last == proposal:
            return [Done(proposal.plan, proposal.from_step)]
        if proposal.everyone and self._left:
            return [_refusal(proposal, next(iter(self._left.values())))]
        if self._open is None:
            self._number += 1
            self._open = _Round(proposal, now_s + self._timeout_s)
        elif self._open.proposal != proposal:
            first = min(self._open.proposers)
            error = MismatchError(
                f"plans differ: rank {first} says {_words(self._open.proposal)}, rank {rank} says {_words(proposal)}",
                rank=rank,
                step=proposal.from_step,
            )
            return [_refusal(proposal, error), *self._abort(error)]
        self._open.proposers.add(rank)
        complete = not proposal.everyone or len(self._open.proposers) == self._num_workers
        if self._open.state is not RoundState.GATHERING or not complete:
            return []
        self._open.state = RoundState.PREPARING
        return [Prepare(self._number, proposal.plan, proposal.from_step)]

    def vote(self, member: int, vote: Vote) -> list[Broadcast]:
        """A member says what it would do."""
        current = self._open
        if current is None or vote.round != self._number or current.state is not RoundState.PREPARING:
            return []
        if vote.refusal:
            return self._abort(PlanError(f"plan from step {current.proposal.from_step}: {vote.refusal}"))
        current.digests[member] = vote.digest
        if len(set(current.digests.values())) > 1:
            said = ", ".join(f"member {who}: {digest}" for who, digest in sorted(current.digests.items()))
            return self._abort(MismatchError(f"plan: members would follow different ones ({said})", rank=member))
        if len(current.digests) == self._num_members:
            current.state = RoundState.COMMITTING
            return [Commit(self._number)]
        return []

    def applied(self, member: int, applied: Applied) -> list[Broadcast]:
        """A member has taken the plan."""
        current = self._open
        if current is None or applied.round != self._number:
            return []
        current.applied.add(member)
        if len(current.applied) < self._num_members:
            return []
        self._open, self._last = None, current.proposal
        return [Done(current.proposal.plan, current.proposal.from_step)]

    def expire(self, now_s: float) -> list[Broadcast]:
        """Abort a round that has waited too long; a JobError when it is too late for that."""
        current = self._open
        if current is None or now_s < current.deadline_s:
            return []
        missing = self._missing(current)
        error = DeadlineError(
            f"plan from step {current.proposal.from_step}: members {', '.join(map(str, missing))} did not answer "
            f"within {self._timeout_s:g} s",
            rank=missing[0],
            step=current.proposal.from_step,
        )
        if current.state is RoundState.COMMITTING:
            raise error
        return self._abort(error)

    def member_lost(self, error: JobError) -> list[Broadcast]:
        """No plan can be agreed without the lost member."""
        return [] if self._open is None else self._abort(error)

    def left(self, member: int, error: JobError) -> list[Broadcast]:
        """A rank proposes nothing more; it still follows what others propose."""
        self._left[member] = error
        current = self._open
        waits_for_it = current is not None and current.state is RoundState.GATHERING and member not in current.proposers
        return self._abort(error) if waits_for_it else []

    @property
    def missing(self) -> tuple[int, ...]:
        """Whom the open round waits for."""
        return () if self._open is None else tuple(self._missing(self._open))

    def deadline_s(self) -> float | None:
        """When `expire` is next needed."""
        return None if self._open is None else self._open.deadline_s

    def _abort(self, error: LegatoError) -> list[Broadcast]:
        assert self._open is not None
        proposal, self._open = self._open.proposal, None
        return [_refusal(proposal, error)]

    def _missing(self, current: _Round) -> list[int]:
        everybody = set(range(self._num_members))
        match current.state:
            case RoundState.GATHERING:
                return sorted(set(range(self._num_workers)) - current.proposers)
            case RoundState.PREPARING:
                return sorted(everybody - set(current.digests))
            case RoundState.COMMITTING:
                return sorted(everybody - current.applied)


def _refusal(proposal: Propose, error: LegatoError) -> Abort:
    return Abort(proposal.plan, proposal.from_step, ErrorText.of(error))


def _words(proposal: Propose) -> str:
    return f"{proposal.plan} from step {proposal.from_step}"
