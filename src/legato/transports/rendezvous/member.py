"""A member: one end of the agreement whose other end is the conductor."""

import contextlib
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from legato.core.shards import Deployment
from legato.errors import ClosedError, DeadlineError, InputError, JobError, LegatoError, PeerLostError, PlanError
from legato.transports.declaration import Declaration
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.addresses import is_wildcard, text
from legato.transports.rendezvous.control_channel import ControlChannel, call
from legato.transports.rendezvous.hosts import words
from legato.transports.rendezvous.join import JoinConfig, Joined
from legato.transports.rendezvous.mesh import Mesh, Ways
from legato.transports.rendezvous.shared_path import SharedPath

_log = logging.getLogger(__name__)

T = TypeVar("T")

NUM_CONNECTIONS = 1
"""More queues do not know of each other: docs/decisions/007."""
_GRACE_S = 5.0
"""What a member waits beyond the conductor's deadlines, so that it hears the reason from the conductor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """Who a member is and where it finds the others."""

    rank: int | None
    """The worker's rank; None is a server."""
    deployment: Deployment
    """Who is in the job."""
    conductor_host: str = "127.0.0.1"
    """Where the conductor is: rank 0's host."""
    conductor_port: int
    """The conductor's port; 0 for a conductor that is opened before its members know where."""
    host: str | None = None
    """Address to listen at; None is the one by which the conductor is reached."""
    port: int = 0
    """Port to listen at while the members connect; 0 takes a free one."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """How members prove that they belong."""
    num_connections: int = NUM_CONNECTIONS
    """Connections between each two members."""
    shared_memory: bool = True
    """Reach members on this host through memory; False is a host of its own."""
    join_timeout_s: float = 60.0
    """How long all members may take to gather."""
    timeout_s: float = 1800.0
    """How long anything else may take while the others live; the dead are heard of within seconds."""
    stall_s: float = 10.0
    """How long a rank waits before all hear who waits for whom."""
    evicts: bool = False
    """Whether the conductor sends a worker away that is far slower than the others: an elastic job goes on without."""
    report_s: float = 5.0
    """How often rank 0 says who is missing while the members gather."""

    def __post_init__(self) -> None:
        if self.rank is not None and not 0 <= self.rank < self.deployment.num_workers:
            raise InputError(f"rank={self.rank} must be 0 to {self.deployment.num_workers - 1}")
        if self.num_connections < 1:
            raise InputError(f"num_connections={self.num_connections} must be at least 1")
        if not 0 <= self.conductor_port <= 65535:
            raise InputError(f"conductor_port={self.conductor_port} must be 0 to 65535")
        for name in ("join_timeout_s", "timeout_s", "stall_s", "report_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)} must be more than 0")


class Player(Protocol):
    """What a member's owner does when the conductor asks. Called from the member's thread, one call at a time."""

    def connect(self, place: m.Welcome, connections: dict[int, list[Joined]], shared: dict[int, SharedPath]) -> None:
        """Take over the ways to the other members, by peer: connections, or memory on the same host."""

    def define(self, definitions: Sequence[m.Definition]) -> None:
        """Be ready for frames of these tensors."""

    def prepare(self, plan: str, from_step: int) -> str:
        """Let no task of `from_step` begin, and say what would be done; PlanError when it cannot be done."""

    def commit(self) -> None:
        """Do what was prepared."""

    def settle(self) -> None:
        """Let tasks begin again."""

    def fail(self, error: LegatoError) -> None:
        """The job is over."""


SLICE_S = 0.5
"""Whoever waits looks up so often: at Ctrl-C, at ranks that have left, and whether it is time to say so."""


class Patience:
    """What a rank does while it waits: after a while it says for what, and again until it waits no longer."""

    def __init__(self, member: "Member", stall_s: float, tensor: str | None, step: int | None) -> None:
        self._member = member
        self._stall_s = stall_s
        self._tensor = tensor
        self._step = step
        self._since_s = time.monotonic()
        self._next_s = self._since_s + stall_s

    def look(self, missing: Sequence[int] = ()) -> None:
        """Between two slices of the wait; `missing` are the ranks that it is for, where that is known."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._stall_s
            self._member.tell(m.Waiting(self._tensor, self._step, tuple(missing), now_s - self._since_s))

    def end(self) -> None:
        """It waits no longer."""
        if self._next_s > self._since_s + self._stall_s:
            self._member.tell(m.Resumed())


def in_time(
    future: "Future[T]",
    timeout_s: float,
    late: Callable[[], DeadlineError],
    patience: Patience | None = None,
) -> T:
    """A future's result, or the error of not having it in time."""
    try:
        if patience is not None:
            _wait_patiently(future, time.monotonic() + timeout_s, patience)
            timeout_s = 0.0
        return future.result(timeout_s)
    except TimeoutError as error:
        if isinstance(error, LegatoError):  # the result itself: somebody else was late
            raise
        raise late() from None


def _wait_patiently(future: "Future[T]", deadline_s: float, patience: Patience) -> None:
    while not future.done() and (left_s := deadline_s - time.monotonic()) > 0:
        wait([future], min(left_s, SLICE_S))
        if not future.done():
            patience.look()
    patience.end()


def given_up(reason: str, rank: int) -> PeerLostError:
    """What a member says that the others take for dead, when it finds out."""
    return PeerLostError(
        f"the others gave this rank up: {reason}; was it stopped, its machine suspended, or its network down for "
        "longer than LEGATO_HEARTBEAT_S?",
        rank=rank,
    )


@dataclass(slots=True)
class _Declared:
    tensor: Declaration
    known: Future[m.Definition]
    definition: m.Definition | None = None
    """The result of `known`, for those who cannot afford its lock at every step."""


class Member:
    """Joins at construction; then declares, proposes and leaves."""

    def __init__(self, config: MemberConfig, common: tuple[tuple[str, str], ...], player: Player) -> None:
        self._config = config
        self._player = player
        self._changed = threading.Condition()
        self._error: LegatoError | None = None
        self._place: m.Welcome | None = None
        self._begun = False
        self._all_left = False
        self._posts: tuple[m.Peer, ...] | None = None
        self._declared: dict[str, _Declared] = {}
        self._definitions: dict[int, m.Definition] = {}
        self._proposals: dict[tuple[str, int], Future[None]] = {}
        self._leavers: dict[int, dict[str, int]] = {}
        """The last steps that each rank has begun which has left, by the tensor's name."""
        # A few of each worker: what nobody takes is old, and makes room.
        self._reports: deque[m.WindowReported] = deque(maxlen=4 * config.deployment.num_workers)
        self._also_absent: Callable[[Declaration, int], JobError | None] | None = None
        self._hear_note: Callable[[int, str], None] | None = None
        self._unheard: list[m.Noted] = []
        """Notes that came before anybody listened."""
        self._join(common)

    @property
    def error(self) -> LegatoError | None:
        """Why the job is over, if it is.

        Another one each time: an error that has been raised keeps the frames it came through, and a model in them.
        """
        return copy(self._error)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where each member was reached when the job began, by number."""
        assert self._place is not None
        return self._place.addresses

    def _join(self, common: tuple[tuple[str, str], ...]) -> None:
        config = self._config
        deadline_s = time.monotonic() + config.join_timeout_s
        _log.info("looking for the conductor at %s", text(config.conductor_host, config.conductor_port))
        joined, join = call(config.conductor_host, config.conductor_port, config.join, deadline_s)
        self.join_config = join
        """How it has proven that it belongs, with the key that the conductor gave where there was none."""
        outward = str(joined.socket.getsockname()[0])
        host = config.host or outward
        try:
            self._mesh = Mesh(
                host,
                config.port,
                join,
                config.deployment,
                num_connections=config.num_connections,
                shared_memory=config.shared_memory,
            )
        except BaseException:
            joined.close()
            raise
        self._line = ControlChannel(joined, hear=self._hear, ended=self._ended)
        try:
            reached_at = outward if is_wildcard(host) else host
            mesh = self._mesh
            self._line.send(m.Hello(config.rank, reached_at, mesh.port, common, mesh.identity, mesh.door))
            _log.info("waiting for the other members at %s", text(host, mesh.port))
            self._await(lambda: self._place is not None, deadline_s + _GRACE_S, "the other members")
            assert self._place is not None
            self._player.connect(self._place, *self._connect(self._place, deadline_s))
            self._line.send(m.Connected())
            self._await(lambda: self._begun, deadline_s + _GRACE_S, "the others' connections")
        except BaseException:
            self._line.close()
            raise
        finally:
            self._mesh.close()

    def _connect(self, place: m.Welcome, deadline_s: float) -> Ways:
        try:
            return self._mesh.connect(place, deadline_s)
        except LegatoError as error:
            if self._error is None:
                self._line.send(m.Failed(m.ErrorText.of(error)))
            raise

    def declare(self, tensors: Sequence[Declaration]) -> list[Future[m.Definition]]:
        """Declare tensors; each future is done when every member knows the tensor, or it is refused."""
        with self._changed:
            if self._error is not None:
                raise copy(self._error)
            new = [tensor for tensor in tensors if not self._is_declared(tensor)]
            for tensor in new:
                self._declared[tensor.name] = _Declared(tensor, Future())
            futures = [self._declared[tensor.name].known for tensor in tensors]
        if new:
            self._line.send(m.Declare(tuple(new)))
        return futures

    def meaning(self, name: str) -> Declaration | None:
        """What this member has declared under a name."""
        declared = self._declared.get(name)
        return None if declared is None else declared.tensor

    def definition(self, tensor: Declaration) -> m.Definition | None:
        """The number of a tensor that is ready to be sent; None when it is not, or no longer, so."""
        declared = self._declared.get(tensor.name)
        if declared is None or self._error is not None or declared.tensor != tensor:
            return None
        return declared.definition

    def propose(self, plan: str, from_step: int, *, everyone: bool) -> None:
        """Have every member follow a plan from a step on; returns when all do, raises when none does."""
        with self._changed:
            if self._error is not None:
                raise copy(self._error)
            outcome = self._proposals.setdefault((plan, from_step), Future())
        self._line.send(m.Propose(plan, from_step, everyone))
        try:
            in_time(
                outcome,
                self._config.timeout_s + _GRACE_S,
                lambda: DeadlineError("rank 0, which conducts the job, does not answer", rank=0),
                self.patience(None, from_step),
            )
        finally:
            with self._changed:
                self._proposals.pop((plan, from_step), None)

    def report(self, from_step: int, text: str) -> None:
        """Have rank 0 know what was measured here; nobody waits for it."""
        self._line.send(m.WindowReport(from_step, text))

    def take_reports(self) -> list[m.WindowReported]:
        """On rank 0: what workers have reported since the last call, without waiting."""
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def note(self, text: str) -> None:
        """Tell all members something, this one included; nobody waits for it."""
        self._line.send(m.Note(text))

    def patience(self, tensor: str | None, step: int | None) -> Patience:
        """For a wait that begins now: for a tensor, or for the plan from a step on."""
        return Patience(self, self._config.stall_s, tensor, step)

    def tell(self, message: m.FromMember) -> None:
        """Send what nobody waits for; also when there is nobody any more."""
        with contextlib.suppress(JobError):
            self._line.send(message)

    def hear_notes(self, hear: Callable[[int, str], None]) -> None:
        """Have `hear` called with everybody's notes, from the first on: the sender's rank, and the text.

        It is called from the member's thread, so it must not wait for other members.
        """
        with self._changed:
            unheard, self._unheard = self._unheard, []
            for noted in unheard:
                hear(noted.rank, noted.text)
            self._hear_note = hear

    def exchange_posts(self, mine: m.Peer) -> tuple[m.Peer, ...]:
        """Where each member of an elastic job can be reached from now on, by number. All of them call it.

        Whoever has them may leave or be lost before the others look: then their next epoch deals with it.
        """
        self._line.send(m.OwnPost(mine))
        deadline_s = time.monotonic() + self._config.join_timeout_s + _GRACE_S
        try:
            self._await(lambda: self._posts is not None, deadline_s, "where the others can be reached")
        except JobError:
            if self._posts is None:
                raise
        assert self._posts is not None
        return self._posts

    def also_absent(self, absence: Callable[[Declaration, int], JobError | None]) -> None:
        """Have `absence` asked as well, by whoever waits: why an operation can never be done though nobody has left."""
        self._also_absent = absence

    def absence(self, tensor: Declaration, step: int) -> JobError | None:
        """Why an operation can never be done: ranks have left without it. None when it does not need them."""
        if self._also_absent is not None:
            error = self._also_absent(tensor, step)
            if error is not None:
                return error
        needed = step - (tensor.staleness or 0)
        without = [rank for rank, steps in self._leavers.items() if steps.get(tensor.name, -1) < needed]
        if len(without) <= tensor.backups:
            return None
        ranks = ", ".join(f"rank {rank}" for rank in sorted(without))
        return ClosedError(
            f"tensor {tensor.name!r}, step {step}: {ranks} left the job before this step; see its log for why, and "
            "have every rank take the same number of steps",
            rank=min(without),
            tensor=tensor.name,
            step=step,
        )

    def leave(self, steps: Mapping[str, int], timeout_s: float) -> None:
        """Say goodbye, with the last steps begun here by name, and wait until everybody has.

        It is an error of the others when that takes too long.
        """
        self._line.send(m.Leave(tuple(steps.items())))
        if not self.wait_until_all_left(min(self._config.stall_s, timeout_s)):
            workers = range(self._config.deployment.num_workers)
            staying = ", ".join(str(rank) for rank in workers if rank not in self._leavers)
            _log.warning("this rank is done and waits until ranks %s are, for %g s at most", staying, timeout_s)
            self.wait_until_all_left(timeout_s)

    def wait_until_all_left(self, timeout_s: float | None) -> bool:
        """Whether everybody has left, or the job has failed, in time. None is for servers: they serve till then."""
        with self._changed:
            return self._changed.wait_for(lambda: self._all_left or self._error is not None, timeout_s)

    def give_up(self, error: LegatoError, timeout_s: float) -> None:
        """Have everybody know why this member goes, or they would take its going for the cause.

        Waits until the conductor has passed it on: on rank 0 it goes together with this member.
        """
        self._line.send(m.Failed(m.ErrorText.of(error)))
        self.wait_until_all_left(timeout_s)

    def close(self) -> None:
        """End the connection to the conductor. Can be called twice."""
        self._line.close()
        self._fail(ClosedError("this member has left the job"))

    def _await(self, predicate: Callable[[], bool], deadline_s: float, what: str) -> None:
        with self._changed:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            self._changed.wait_for(lambda: predicate() or self._error is not None, left_s)
            if self._error is not None:
                raise copy(self._error)
            if not predicate():
                raise DeadlineError(f"rank 0, which conducts the job, did not answer while waiting for {what}", rank=0)

    def _is_declared(self, tensor: Declaration) -> bool:
        known = self._declared.get(tensor.name)
        return known is not None and known.tensor == tensor

    # ---- called from the line's thread ----

    def _hear(self, message: m.Message) -> None:
        match message:
            case m.Define(definitions):
                self._player.define(definitions)
                self._definitions.update((definition.id, definition) for definition in definitions)
                self._line.send(m.Defined(tuple(definition.id for definition in definitions)))
            case m.TensorsReady(ids):
                self._ready(ids)
            case m.Refused(name, error):
                self._refused(name, error.error())
            case m.Prepare(number, plan, from_step):
                self._line.send(self._vote(number, plan, from_step))
            case m.Commit(number):
                self._player.commit()
                self._line.send(m.Applied(number))
            case m.Done(plan, from_step):
                self._player.settle()
                self._settle(plan, from_step, None)
            case m.Abort(plan, from_step, error):
                self._player.settle()
                self._settle(plan, from_step, error.error())
            case m.WindowReported():
                self._reports.append(message)
            case m.Noted():
                self._noted(message)
            case m.Stalled(said, suspects):
                _log.warning("%s", said)
                if self._place is not None and self._place.member in suspects:
                    _log.warning("what this rank is doing while others wait for it:\n%s", stacks())
            case m.Straggling(said):
                _log.warning("%s", said)
            case m.Fatal(error):
                _log.info("%s", error.text)
                self._fail(self._as_heard_here(error.error()))
            case m.Left(member, steps):
                _log.info("rank %d left", member)
                self._leavers = {**self._leavers, member: dict(steps)}
            case _:
                self._progress(message)

    def _as_heard_here(self, error: LegatoError) -> LegatoError:
        if self._place is not None and isinstance(error, PeerLostError) and error.rank == self._place.member:
            return given_up(str(error), self._place.member)
        return error

    def _progress(self, message: m.Message) -> None:
        with self._changed:
            match message:
                case m.Welcome(member, _, addresses, hosts):
                    everybody = ", ".join(f"{number} at {text(*where)}" for number, where in enumerate(addresses))
                    _log.info("member %d of a job of %d: %s", member, len(addresses), everybody)
                    _log.info("%s", words(hosts))
                    self._place = message
                case m.Begin():
                    self._begun = True
                case m.AllPosts(peers):
                    self._posts = peers
                case m.AllLeft():
                    self._all_left = True
            self._changed.notify_all()

    def _noted(self, noted: m.Noted) -> None:
        with self._changed:
            if self._hear_note is None:
                self._unheard.append(noted)
                return
            hear = self._hear_note
        hear(noted.rank, noted.text)

    def _vote(self, number: int, plan: str, from_step: int) -> m.Vote:
        try:
            return m.Vote(number, self._player.prepare(plan, from_step), "")
        except PlanError as error:
            return m.Vote(number, "", str(error))

    def _ready(self, ids: Sequence[int]) -> None:
        for number in ids:
            definition = self._definitions[number]
            with self._changed:
                declared = self._declared.get(definition.tensor.name)
            if declared is not None and not declared.known.done():
                declared.definition = definition
                declared.known.set_result(definition)

    def _refused(self, name: str, error: LegatoError) -> None:
        with self._changed:
            declared = self._declared.get(name)
            if declared is None:
                return  # not this rank's yet: the conductor tells it again when it is
            declared.definition = None
            if declared.known.done():
                declared.known = Future()
        declared.known.set_exception(error)

    def _settle(self, plan: str, from_step: int, error: LegatoError | None) -> None:
        with self._changed:
            outcome = self._proposals.get((plan, from_step))
        if outcome is None or outcome.done():
            return
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    def _ended(self, error: LegatoError) -> None:
        if not self._all_left:  # otherwise the conductor goes because everybody does
            self._fail(error)

    def _fail(self, error: LegatoError) -> None:
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            known = [declared.known for declared in self._declared.values()]
            waiting: list[Future[Any]] = [*known, *self._proposals.values()]
            self._changed.notify_all()
        self._mesh.fail(error)
        for future in waiting:
            if not future.done():
                future.set_exception(error)
        self._player.fail(error)


def stacks() -> str:
    """What every thread of this process is doing, but for legato's own."""
    frames = sys._current_frames()
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("legato")]
    return "\n".join(
        f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames
    )
