"""The memory transport: all ranks in one process, exact and deterministic, with faults on demand.

A shipped fake, for tests of everything above transports. It passes the same contract as the real ones.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.scheduler import Finished, Sent
from legato.errors import ClosedError, InputError, JobError, LegatoError, PeerLostError, PlanError
from legato.transports.base import bucket_declaration, check_stages
from legato.transports.buffer import Array, Buffer
from legato.transports.declaration import Declaration
from legato.transports.rendezvous.messages import (
    Abort,
    Applied,
    Commit,
    Define,
    Done,
    Prepare,
    Propose,
    Refused,
    TensorsReady,
    Vote,
)
from legato.transports.rendezvous.plan_rounds import Broadcast, PlanRounds
from legato.transports.rendezvous.tensor_registry import Answer, TensorRegistry


def _average(values: list[Array]) -> Array:
    total: Array = np.add.reduce(values, axis=0)
    if total.dtype.kind == "f":
        return np.multiply(total, 1.0 / len(values), dtype=total.dtype)
    return np.trunc(total / len(values)).astype(total.dtype)


_REDUCE: dict[str, Callable[[list[Array]], Array]] = {
    "sum": lambda values: np.add.reduce(values, axis=0),
    "average": _average,
    "min": lambda values: np.minimum.reduce(values, axis=0),
    "max": lambda values: np.maximum.reduce(values, axis=0),
    "product": lambda values: np.multiply.reduce(values, axis=0),
}


@dataclass(frozen=True, slots=True)
class _Offer:
    source: Buffer
    destination: Buffer
    reduction: str

    def piece(self, buffer: Buffer, part: Part) -> Array:
        flat = buffer.array().reshape(-1)
        return flat[part.offset // flat.itemsize : (part.offset + part.length) // flat.itemsize]


@dataclass(slots=True, eq=False)
class _Rank:
    offers: dict[tuple[int, int], _Offer] = field(default_factory=dict)
    events: list[Sent | Finished] = field(default_factory=list)
    latest_step: int = -1
    closed: bool = False


class MemoryHub:
    """Where the ranks meet. `hold` and `lose` are for tests that need trouble."""

    def __init__(self, size: int, timeout_s: float = 60.0, *, reports_sent: bool = False) -> None:
        if size < 1:
            raise InputError(f"size={size} must be at least 1")
        self.size = size
        self.timeout_s = timeout_s
        self.reports_sent = reports_sent
        self.changed = threading.Condition()
        self.ranks = [_Rank() for _ in range(size)]
        self.error: JobError | None = None
        self._ledger = TensorRegistry(num_workers=size, num_members=size, timeout_s=timeout_s)
        self._rounds = PlanRounds(num_workers=size, num_members=size, timeout_s=timeout_s)
        self._answers: dict[str, LegatoError | None] = {}
        self._outcomes: dict[tuple[str, int], LegatoError | None] = {}
        self._names: dict[int, str] = {}
        self._started: dict[Part, set[int]] = {}
        self._arrived: Counter[Part] = Counter()
        self._sums: dict[tuple[int, int, int], Array] = {}
        self._held: Callable[[Part], bool] = lambda part: False  # noqa: ARG005
        self._waiting: list[tuple[int, Part]] = []

    def transport(self, rank: int) -> "MemoryTransport":
        """A rank's end."""
        if not 0 <= rank < self.size:
            raise InputError(f"rank={rank} must be 0 to {self.size - 1}")
        return MemoryTransport(self, rank)

    def hold(self, held: Callable[[Part], bool]) -> None:
        """Do not move the parts for which `held` is true, until told otherwise: a link that is slow, at will."""
        with self.changed:
            self._held = held
            waiting, self._waiting = self._waiting, []
            for rank, part in waiting:
                self._move(rank, part)

    def lose(self, rank: int) -> None:
        """Let a rank die: the others hear of it."""
        with self.changed:
            self.error = PeerLostError(f"rank {rank} is gone; see its log for why", rank=rank)
            self._take(self._ledger.gone(rank, self.error))
            self._follow(self._rounds.member_lost(self.error))
            self.changed.notify_all()

    # ---- for the ranks' ends, with the lock held ----

    def declare(self, rank: int, tensors: Sequence[Declaration]) -> None:
        self._take(self._ledger.declare(rank, tensors, time.monotonic()))
        names = {tensor.name for tensor in tensors}
        if not self.changed.wait_for(lambda: names <= self._answers.keys(), self.timeout_s):
            self._take(self._ledger.expire(time.monotonic()))
        for error in (self._answers.get(tensor.name) for tensor in tensors):
            if error is not None:
                raise error

    def propose(self, rank: int, proposal: Propose) -> None:
        key = (proposal.plan, proposal.from_step)
        self._outcomes.pop(key, None)
        self._follow(self._rounds.propose(rank, proposal, time.monotonic()))
        if not self.changed.wait_for(lambda: key in self._outcomes, self.timeout_s):
            self._follow(self._rounds.expire(time.monotonic()))
        error = self._outcomes.get(key)
        if error is not None:
            raise error

    def start(self, rank: int, part: Part) -> None:
        ranks = self._started.setdefault(part, set())
        if rank in ranks:
            raise InputError(f"{part} has been started before on rank {rank}")
        ranks.add(rank)
        self._move(rank, part)

    def _move(self, rank: int, part: Part) -> None:
        if self._held(part):
            self._waiting.append((rank, part))
            return
        if self.reports_sent and part.stage is not Stage.ALL_GATHER:  # whoever gathers sends nothing
            self.ranks[rank].events.append(Sent(part))
            self.changed.notify_all()
        self._arrived[part] += 1
        if self._arrived[part] == self.size:
            del self._started[part], self._arrived[part]
            self._finish(part)

    def _finish(self, part: Part) -> None:
        offers = [rank.offers[part.step, part.bucket] for rank in self.ranks]
        if part.stage is not Stage.ALL_GATHER:
            pieces = [offer.piece(offer.source, part) for offer in offers]
            self._sums[part.step, part.bucket, part.offset] = _REDUCE[offers[0].reduction](pieces)
        if part.stage is not Stage.REDUCE_SCATTER:
            result = self._sums.pop((part.step, part.bucket, part.offset))
            for offer in offers:
                offer.piece(offer.destination, part)[:] = result
        for rank in self.ranks:
            rank.events.append(Finished(part))
        self.changed.notify_all()

    def _take(self, answers: Sequence[Answer]) -> None:
        """Play all members at once: everybody defines what is to be defined."""
        for answer in answers:
            match answer:
                case Define(definitions):
                    self._names.update((known.id, known.tensor.name) for known in definitions)
                    ids = [definition.id for definition in definitions]
                    for member in range(self.size):
                        self._take(self._ledger.defined(member, ids))
                case TensorsReady(ids):
                    self._answers.update(dict.fromkeys((self._names[number] for number in ids), None))
                case Refused(name, error):
                    self._answers[name] = error.error()
        self.changed.notify_all()

    def _follow(self, broadcasts: Sequence[Broadcast]) -> None:
        """Play all members at once: everybody votes, and applies."""
        for broadcast in broadcasts:
            match broadcast:
                case Prepare(number, plan, from_step):
                    for member, rank in enumerate(self.ranks):
                        begun = f"rank {member} has begun step {rank.latest_step} already; choose a later one"
                        refusal = begun if from_step <= rank.latest_step else ""
                        self._follow(self._rounds.vote(member, Vote(number, plan, refusal)))
                case Commit(number):
                    for member in range(self.size):
                        self._follow(self._rounds.applied(member, Applied(number)))
                case Done(plan, from_step):
                    self._outcomes[plan, from_step] = None
                case Abort(plan, from_step, error):
                    self._outcomes[plan, from_step] = error.error()
        self.changed.notify_all()


class MemoryTransport:
    """One rank's end of a hub."""

    stages = frozenset(Stage)

    def __init__(self, hub: MemoryHub, rank: int) -> None:
        self.rank = rank
        self.size = hub.size
        self.reports_sent = hub.reports_sent
        self._hub = hub
        self._self = hub.ranks[rank]
        self._tensors: list[Declaration] = []
        self._plans: list[tuple[int, Plan]] = []

    def declare(self, tensors: Sequence[Declaration]) -> None:
        with self._hub.changed:
            self._check()
            self._hub.declare(self.rank, tensors)
            self._tensors += tensors

    def set_plan(self, plan: Plan, from_step: int) -> None:
        check_stages(self, plan)
        for bucket in plan.buckets:
            bucket_declaration([self._tensors[index] for index in bucket])
        with self._hub.changed:
            self._check()
            self._hub.propose(self.rank, Propose(plan.to_json(), from_step, everyone=True))
            self._plans = [entry for entry in self._plans if entry[0] < from_step] + [(from_step, plan)]

    def offer(self, step: int, bucket: int, source: Buffer, destination: Buffer, *, reduction: str = "sum") -> None:
        if reduction not in _REDUCE:
            raise InputError(f"reduction is {reduction!r}, accepted are {', '.join(_REDUCE)}")
        with self._hub.changed:
            self._check()
            if not any(from_step <= step for from_step, _ in self._plans):
                raise PlanError(f"step {step} has no plan; call set_plan first")
            self._self.latest_step = max(self._self.latest_step, step)
            self._self.offers[step, bucket] = _Offer(source, destination, reduction)

    def start(self, part: Part) -> None:
        with self._hub.changed:
            self._check()
            if (part.step, part.bucket) not in self._self.offers:
                raise InputError(f"{part} cannot start: its bucket has not been offered")
            self._hub.start(self.rank, part)

    def events(self, timeout_s: float) -> list[Sent | Finished]:
        with self._hub.changed:
            self._hub.changed.wait_for(lambda: bool(self._self.events) or self._over(), timeout_s)
            events, self._self.events = self._self.events, []
            if not events:
                self._check()
            return events

    def close(self) -> None:
        with self._hub.changed:
            self._self.closed = True
            self._hub.changed.notify_all()

    def _over(self) -> bool:
        return self._self.closed or self._hub.error is not None

    def _check(self) -> None:
        if self._self.closed:
            raise ClosedError("the transport is closed; make a new one to go on", rank=self.rank)
        if self._hub.error is not None:
            raise self._hub.error
