"""A member of an elastic job, from epoch to epoch: a worker (`membership`) or a server (`server`).

Each epoch is a job of its own, which ends as a whole. What a member has beyond it is its post, and the roll of the last
epoch that it was in.

Note: two kinds of threads. The member's own thread goes from epoch to epoch; the post's are told by others that one has
ended. `_mustering` is the hand-over, under the lock: the own thread sets it before it leaves an epoch, makes the next
session while it is set, and clears it together with the new roll. So whoever finds it clear has the session of the roll
that it sees; whoever finds it set touches neither.
"""

import logging
import socket
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from legato.core.shards import Deployment
from legato.elastic.muster import Muster, MusterConfig
from legato.elastic.post import NEWCOMER, LeftBehindError, Life, Post, receive, visit
from legato.elastic.roll import Roll
from legato.errors import ClosedError, DeadlineError, InputError, JobError, PeerLostError, ProtocolError
from legato.transports.native.session import NativeConfig, Session
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.addresses import text
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.join import JoinConfig

_log = logging.getLogger(__name__)

FAULTS = (PeerLostError, ProtocolError, ClosedError)
"""What ends an epoch and not the job. Everything else would happen again in the next one."""
_FORMING_S = 5.0
"""What a called epoch may take to begin, at least: everybody is there and waits."""
_RETRY_S = 0.2


class EpochMember(ABC):
    """`_start` joins: the first epoch with those who start together, or a running job at its next epoch."""

    serves: ClassVar[bool]
    """Whether it is a server."""

    def __init__(self, config: NativeConfig, members_file: Path | None) -> None:
        """`members_file` is where workers of this host leave word of where the job can be reached."""
        self._config = replace(config, is_elastic=True)
        self._members_file = members_file
        self._lock = threading.Lock()
        self._mustering = True
        """Whether it is in no epoch: there is a post before there is a roll."""
        self._leash: Callable[[], None] = lambda: None
        """Lets go of what tells the last leader that this member lives."""
        self._join: JoinConfig
        self._post: Post
        self._roll: Roll

    @property
    @abstractmethod
    def session(self) -> Session:
        """In the present epoch, or the last one."""

    @abstractmethod
    def _enter(self, config: NativeConfig, conductor: Conductor | None) -> None:
        """Join an epoch, with a conductor that is open already on the rank that leads."""

    @abstractmethod
    def _leave(self, *, now: bool) -> None:
        """The epoch: when everybody does, or `now`."""

    @abstractmethod
    def _takes_newcomers(self) -> bool:
        """Whether they wait here. Called from the post's threads."""

    @property
    def epoch(self) -> int:
        return self._roll.epoch

    @property
    def num_servers(self) -> int:
        """Of this epoch; where there is none, workers sum themselves."""
        return len(self._roll.servers)

    def end_epoch(self) -> None:
        """Leave it at once; what it has not finished by now it never will."""
        with self._lock:
            self._mustering = True
        self._leave(now=True)

    def close(self, *, now: bool) -> None:
        """Leave the job. Nobody is called to an epoch any more from here on."""
        self._post.close()
        self._leash()
        self._leave(now=now)

    # ---- the first epoch ----

    def _start(self) -> None:
        addresses = members_in(self._members_file)
        if addresses:
            self._join_running(addresses)
        else:
            self._join_first()

    def _join_first(self) -> None:
        self._enter(self._config, None)
        member = self.session.member
        self._join = member.join_config
        host = member.addresses[self.session.player.member][0]
        self._post = Post(host, self._join, self._summoned, self._takes_newcomers)
        try:
            peers = member.exchange_posts(self._post.peer)
        except BaseException:
            self.close(now=True)
            raise
        num_workers = self._config.member.deployment.num_workers
        self._begin(Roll(0, peers[:num_workers], peers[num_workers:]))

    def _join_running(self, addresses: list[tuple[str, int]]) -> None:
        """As a newcomer, at the post of the most senior worker."""
        join = self._config.member.join
        if join.lacks_key:
            raise InputError("whoever joins a running job needs its key: set LEGATO_KEY or LEGATO_KEY_FILE")
        self._join = join
        config = self._config.member
        host = config.host or ("127.0.0.1" if addresses[0][0].startswith("127.") else _outward(addresses[0]))
        self._post = Post(host, join, self._summoned, self._takes_newcomers)
        try:
            self._be_taken_in()
        except BaseException:
            self._leash()
            self._post.close()
            raise

    def _be_taken_in(self) -> None:
        here = m.Here(NEWCOMER, self._post.peer, at_boundary=True, serves=self.serves)
        timeout_s, join_timeout_s = self._config.member.timeout_s, self._config.member.join_timeout_s
        deadline_s, deserted_s = time.monotonic() + timeout_s, time.monotonic() + join_timeout_s
        addresses: list[tuple[str, int]] = []
        while time.monotonic() < min(deadline_s, deserted_s):
            addresses = members_in(self._members_file)
            if not addresses:
                break  # whoever has started that job says that nobody is left of it
            for address in addresses:
                life, called = self._visit(address, here)
                if called is not None and self._reach(called):
                    return
                if life is not Life.DEAD:
                    deserted_s = time.monotonic() + join_timeout_s
            threading.Event().wait(_RETRY_S)
        where = ", ".join(text(*address) for address in addresses) or f"{self._members_file} is empty"
        raise DeadlineError(
            f"nobody of the running job has taken this one in, within {timeout_s:g} s, or {join_timeout_s:g} s after "
            f"the last of them was gone: {where}"
        )

    def _visit(self, address: tuple[str, int], here: m.Here) -> tuple[Life, m.Called | None]:
        """Wait at a worker's post for the next epoch, which nobody is called to where it goes, or is not the most
        senior one."""
        heartbeat_s = self._config.engine.heartbeat_s
        try:
            life, connection = visit(m.Peer("", *address), here, self._join, time.monotonic() + heartbeat_s)
        except LeftBehindError:
            return Life.ALIVE, None
        if connection is None:
            return life, None
        connection.socket.settimeout(self._config.member.timeout_s)
        try:
            message = receive(connection)
        except (OSError, ProtocolError):
            connection.close()
            return life, None
        if isinstance(message, m.Dismissed):
            connection.close()
            raise message.error.error()
        self._leash = connection.close
        return life, message if isinstance(message, m.Called) else None

    # ---- later ones ----

    def _muster(self, *, at_boundary: bool) -> Muster:
        config = MusterConfig(answer_s=self._config.engine.heartbeat_s, timeout_s=self._config.member.timeout_s)
        return Muster(self._post, self._roll, self._join, config, at_boundary=at_boundary)

    def _follow(self, muster: Muster) -> m.Called | None:
        """What the most senior worker that lives calls to, if that is another one."""
        self._leash()
        followed = muster.follow()
        if followed is None:
            return None
        called, connection = followed
        self._leash = connection.close
        return called

    def _reach(self, called: m.Called, conductor: Conductor | None = None) -> bool:
        """Join the epoch that has been called; False when it cannot begin, and its members have to muster again."""
        port = called.port if conductor is None else conductor.port
        roll = Roll(called.epoch, called.workers, called.servers, called.learners)
        config = self._epoch_config(roll, called.host, port)
        try:
            self._enter(config, conductor)
        except JobError as error:
            _log.warning("epoch %d did not begin: %s", called.epoch, error)
            return False
        self._begin(roll)
        return True

    def _epoch_config(self, roll: Roll, host: str, port: int) -> NativeConfig:
        member = self._config.member
        epoch = replace(
            member,
            rank=None if self.serves else roll.rank(self._post.peer),
            deployment=Deployment(
                num_workers=len(roll.workers) + len(roll.learners),
                num_servers=len(roll.servers),
                num_learners=len(roll.learners),
                workers_serve=member.deployment.workers_serve or not roll.servers,
            ),
            conductor_host=host,
            conductor_port=port,
            join=self._join,
            join_timeout_s=max(_FORMING_S, 2 * self._config.engine.heartbeat_s),
        )
        return replace(self._config, member=epoch)

    def _begin(self, roll: Roll) -> None:
        with self._lock:
            self._roll = roll
            self._mustering = False

    # ---- called from the post's threads ----

    def _summoned(self, knocker: str) -> str:
        """Somebody musters. Where it belongs to this member's epoch, that has ended, or never began for everybody;
        otherwise there is a later epoch than the knocker's already."""
        with self._lock:
            if self._mustering:
                return ""
            if all(each.id != knocker for each in self._roll.members):
                return f"the others gave it up and are in epoch {self._roll.epoch}"
            session = self.session
        session.end(PeerLostError("another member says that this epoch has ended"))
        return ""


def members_in(path: Path | None) -> list[tuple[str, int]]:
    """Where the workers are that a members file tells of."""
    if path is None or not path.exists():
        return []
    lines = path.read_text().split()
    return [(host.strip("[]"), int(port)) for host, _, port in (line.rpartition(":") for line in lines)]


def write_members(path: Path, workers: tuple[m.Peer, ...]) -> None:
    """Whoever reads it finds all of it, the old or the new."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write("".join(f"{text(each.host, each.port)}\n" for each in workers))
    Path(file.name).replace(path)


def _outward(address: tuple[str, int]) -> str:
    """The address of this host by which another one is reached."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
