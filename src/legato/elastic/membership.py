"""Membership: this worker of an elastic job, from epoch to epoch. Each epoch is a group of its own."""

import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from legato.core.shards import Deployment
from legato.elastic.muster import Leading, Muster, MusterConfig
from legato.elastic.post import NEWCOMER, LeftBehindError, Post, receive, visit
from legato.elastic.roll import Roll, succession
from legato.errors import (
    ClosedError,
    DeadlineError,
    EvictedError,
    InputError,
    JobError,
    PeerLostError,
    ProtocolError,
)
from legato.transports.native.group import NativeGroup
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.addresses import text
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.member import given_up

_log = logging.getLogger(__name__)

_FAULTS = (PeerLostError, ProtocolError, ClosedError)
"""What ends an epoch and not the job. Everything else would happen again in the next one."""
_FORMING_S = 5.0
"""What a called epoch may take to begin, at least: everybody is there and waits."""
_WATCH_S = 0.1
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """From one epoch to the next."""

    rank: int
    size: int
    joined: int
    lost: tuple[int, ...]
    """By their ranks in the last epoch."""


class Membership:
    """Joins at construction: the first epoch with those who start together, or a running job at its next boundary."""

    max_faults: ClassVar[int] = 5
    """Epochs that may end within a minute although nobody was lost: after that the network is to blame."""

    def __init__(self, config: NativeConfig, minimum: int, members_file: Path | None) -> None:
        """`members_file` is where workers of this host leave word of where the job can be reached."""
        if config.member.deployment.num_servers:
            raise InputError("LEGATO_ELASTIC does not go with LEGATO_SERVERS: workers of an elastic job sum themselves")
        num_workers = config.member.deployment.num_workers
        self._evicts = config.member.evicts
        self._config = replace(config, member=replace(config.member, evicts=self._evicts and num_workers > minimum))
        self._minimum = minimum
        self._members_file = members_file
        self._lock = threading.Lock()
        self._mustering = True
        """Whether it is in no epoch: there is a post before there is a roll."""
        self._leash: Callable[[], None] = lambda: None
        """Lets go of what tells the last leader that this worker lives."""
        self._faults: list[float] = []
        self.group: NativeGroup
        self._roll: Roll
        addresses = _addresses(members_file)
        if addresses:
            self._join_running(addresses)
        else:
            self._join_first()

    @property
    def rank(self) -> int:
        return self._roll.rank(self._post.worker)

    @property
    def size(self) -> int:
        return len(self._roll.workers)

    @property
    def epoch(self) -> int:
        return self._roll.epoch

    @property
    def has_newcomers(self) -> bool:
        """Whether somebody waits here for the next boundary."""
        return any(arrival.here.epoch == NEWCOMER for arrival in self._post.arrivals())

    def check(self, error: JobError) -> None:
        """Raise an error that the next epoch would not be free of."""
        if self.group.session.closed or not isinstance(error, _FAULTS):
            if isinstance(error, EvictedError):
                self._post.close()  # nobody shall wait until this process has ended
            raise error
        now_s = time.monotonic()
        self._faults = [at_s for at_s in self._faults if at_s > now_s - 60.0]
        if len(self._faults) >= self.max_faults:
            words = "%d epochs have ended within a minute and nobody was lost: the network is to blame"
            _log.error(words, self.max_faults)
            raise error
        _log.warning("epoch %d has ended: %s", self._roll.epoch, error)

    def end_epoch(self) -> None:
        """Leave the group; what it has not finished by now it never will."""
        with self._lock:
            self._mustering = True
        self.group.close(now=True)

    def regroup(self, *, at_boundary: bool) -> tuple[Change, bool]:
        """Form the next epoch with everybody who lives; the change, and whether all had nothing under way.

        Then newcomers are in it, and get what the others have. A JobError says that this worker cannot go on.
        """
        before, timeout_s = self._roll, self._config.member.timeout_s
        config = MusterConfig(answer_s=self._config.engine.heartbeat_s, timeout_s=timeout_s)
        deadline_s = time.monotonic() + timeout_s
        while (called := self._form(Muster(self._post, before, self._join, config, at_boundary=at_boundary))) is None:
            if time.monotonic() >= deadline_s:
                raise DeadlineError(f"no epoch could begin within {timeout_s:g} s; see the log for why")
        lost = tuple(rank for rank, worker in enumerate(before.workers) if worker not in called.workers)
        joined = sum(worker not in before.workers for worker in called.workers)
        if not lost and not joined and not called.is_boundary:
            self._faults.append(time.monotonic())
        change = Change(self.rank, self.size, joined, lost)
        _log.warning("epoch %d: rank %d of %d; %s", self.epoch, change.rank, change.size, _words(change))
        return change, called.is_boundary

    def close(self, *, now: bool) -> None:
        """Leave the job. Nobody is called to an epoch any more from here on."""
        self._post.close()
        self._leash()
        self.group.close(now=now)

    # ---- the first epoch ----

    def _join_first(self) -> None:
        self.group = group = NativeGroup(self._config)
        member = group.session.member
        self._join = member.join_config
        self._post = Post(member.addresses[group.rank][0], self._join, self._summoned, self._takes_newcomers)
        mine = self._post.worker
        line = f"{mine.id} {mine.host} {mine.port}\n".encode()
        lines = group.allgather("legato/posts", np.frombuffer(line, np.uint8).copy()).tobytes().decode().splitlines()
        workers = [m.Worker(name, host, int(port)) for name, host, port in map(str.split, lines)]
        self._begin(Roll(0, tuple(workers)))

    def _join_running(self, addresses: list[tuple[str, int]]) -> None:
        """As a newcomer, at the post of the most senior worker."""
        join = self._config.member.join
        if join.lacks_key:
            raise InputError("a worker that joins a running job needs its key: set LEGATO_KEY or LEGATO_KEY_FILE")
        self._join = join
        config = self._config.member
        host = config.host or ("127.0.0.1" if addresses[0][0].startswith("127.") else _outward(addresses[0]))
        self._post = Post(host, join, self._summoned, self._takes_newcomers)
        here = m.Here(NEWCOMER, self._post.worker, at_boundary=True)
        deadline_s = time.monotonic() + config.timeout_s
        while time.monotonic() < deadline_s:
            addresses = _addresses(self._members_file)
            if not addresses:
                break  # whoever has started that job says that nobody is left of it
            for address in addresses:
                called = self._visit(address, here)
                if called is not None and self._reach(called):
                    return
            threading.Event().wait(_RETRY_S)
        self._post.close()
        where = ", ".join(text(*address) for address in addresses) or f"{self._members_file} is empty"
        raise DeadlineError(
            f"nobody of the running job has taken this worker in, for {config.timeout_s:g} s at most: {where}"
        )

    def _visit(self, address: tuple[str, int], here: m.Here) -> m.Called | None:
        """Wait at a worker's post for the next boundary; None where that is not the most senior one, or it goes."""
        heartbeat_s = self._config.engine.heartbeat_s
        try:
            _, connection = visit(m.Worker("", *address), here, self._join, time.monotonic() + heartbeat_s)
        except LeftBehindError:
            return None
        if connection is None:
            return None
        connection.socket.settimeout(self._config.member.timeout_s)
        try:
            message = receive(connection)
        except (OSError, ProtocolError):
            connection.close()
            return None
        if isinstance(message, m.Dismissed):
            connection.close()
            raise message.error.error()
        self._leash = connection.close
        return message if isinstance(message, m.Called) else None

    # ---- later ones ----

    def _form(self, muster: Muster) -> m.Called | None:
        """The next epoch, by whoever leads; None where it was called and did not begin."""
        self._leash()
        followed = muster.follow()
        if followed is None:
            return self._lead(muster)
        called, connection = followed
        self._leash = connection.close
        return called if self._reach(called) else None

    def _lead(self, muster: Muster) -> m.Called | None:
        census, arrivals, newcomers = muster.census()
        try:
            self._check_listed()
            census.check(self._roll, self._minimum)
        except JobError as error:
            muster.dismiss([*arrivals, *newcomers], error)
            raise
        is_boundary = muster.at_boundary and all(arrival.here.at_boundary for arrival in arrivals)
        admitted = newcomers if is_boundary else []
        workers = succession(self._roll, census.here, [arrival.here.worker for arrival in admitted])
        config = self._epoch_config(workers, self._post.worker.host, 0)
        conductor = Conductor(config.member, config.common())
        leading = muster.call(workers, conductor, [*arrivals, *admitted], is_boundary=is_boundary)
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(leading, over), name="legato-muster", daemon=True)
        watch.start()
        try:
            reached = self._reach(leading.called, conductor)
        finally:
            over.set()
            watch.join()
        leading.formed()
        return leading.called if reached else None

    def _check_listed(self) -> None:
        """Whoever was stopped until the others had ended finds nobody who would tell it that they gave it up; but the
        members file has the last epoch that began."""
        mine = self._post.worker
        addresses = _addresses(self._members_file)
        if addresses and (mine.host, mine.port) not in addresses:
            raise given_up("they went on without it and have ended since", self._roll.rank(mine))

    def _reach(self, called: m.Called, conductor: Conductor | None = None) -> bool:
        """Join the epoch that has been called; False when it cannot begin, and the workers have to muster again."""
        port = called.port if conductor is None else conductor.port
        config = self._epoch_config(called.workers, called.host, port)
        try:
            self.group = NativeGroup(config, conductor)
        except JobError as error:
            _log.warning("epoch %d did not begin: %s", called.epoch, error)
            return False
        self._begin(Roll(called.epoch, called.workers))
        return True

    def _epoch_config(self, workers: tuple[m.Worker, ...], host: str, port: int) -> NativeConfig:
        heartbeat_s = self._config.engine.heartbeat_s
        member = replace(
            self._config.member,
            rank=workers.index(self._post.worker),
            deployment=Deployment(num_workers=len(workers)),
            conductor_host=host,
            conductor_port=port,
            join=self._join,
            join_timeout_s=max(_FORMING_S, 2 * heartbeat_s),
            evicts=self._evicts and len(workers) > self._minimum,
        )
        return replace(self._config, member=member)

    def _begin(self, roll: Roll) -> None:
        with self._lock:
            self._roll = roll
            self._mustering = False
        if self._members_file is not None:
            _write(self._members_file, "".join(f"{text(each.host, each.port)}\n" for each in roll.workers))

    # ---- called from the post's threads ----

    def _summoned(self, epoch: int) -> str:
        """Somebody says that an epoch has ended: so it has for this worker, or there is a later one already."""
        with self._lock:
            if self._mustering:
                return ""
            if epoch < self._roll.epoch:
                return f"the others gave it up and are in epoch {self._roll.epoch}"
            session = self.group.session
        session.end(PeerLostError("another worker says that this epoch has ended"))
        return ""

    def _takes_newcomers(self) -> bool:
        """The most senior worker does: it leads."""
        with self._lock:
            return not self._mustering and not self._roll.seniors(self._post.worker)


def _watch(leading: Leading, over: threading.Event) -> None:
    """Let nobody wait for an epoch that one of the called does not reach."""
    while not over.wait(_WATCH_S):
        if leading.is_doomed():
            leading.conductor.close()
            return


def _words(change: Change) -> str:
    gone = f"ranks {', '.join(map(str, change.lost))} of the last one are gone" if change.lost else "nobody was lost"
    return gone if not change.joined else f"{gone}, {change.joined} joined"


def _addresses(path: Path | None) -> list[tuple[str, int]]:
    if path is None or not path.exists():
        return []
    lines = path.read_text().split()
    return [(host.strip("[]"), int(port)) for host, _, port in (line.rpartition(":") for line in lines)]


def _write(path: Path, content: str) -> None:
    """Whoever reads it finds all of it, the old or the new."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def _outward(address: tuple[str, int]) -> str:
    """The address of this host by which another one is reached."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
