"""Membership: this worker of an elastic job, from epoch to epoch."""

import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from legato.elastic.epoch_member import FAULTS, EpochMember, members_in, write_members
from legato.elastic.muster import Leading, Muster
from legato.elastic.post import NEWCOMER, Arrival, LeftBehindError
from legato.elastic.roll import Census, Roll, succession
from legato.errors import DeadlineError, EvictedError, JobError, PeerLostError
from legato.transports.native.group import NativeGroup
from legato.transports.native.session import NativeConfig, Session
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.member import given_up

_log = logging.getLogger(__name__)

_WATCH_S = 0.1


@dataclass(frozen=True, slots=True)
class Change:
    """From one epoch to the next."""

    rank: int
    size: int
    joined: int
    lost: tuple[int, ...]
    """By their ranks in the last epoch."""


class Membership(EpochMember):
    """Joins at construction: the first epoch with those who start together, or a running job at its next boundary."""

    serves: ClassVar[bool] = False
    max_faults: ClassVar[int] = 5
    """Epochs that may end within a minute although nobody was lost: after that the network is to blame."""

    def __init__(self, config: NativeConfig, minimum: int, members_file: Path | None) -> None:
        num_workers = config.member.deployment.num_workers
        self._evicts = config.member.evicts
        self._minimum = minimum
        self._faults: list[float] = []
        self.group: NativeGroup
        evicts = self._evicts and num_workers > minimum
        super().__init__(replace(config, member=replace(config.member, evicts=evicts)), members_file)
        self._start()

    @property
    def session(self) -> Session:
        return self.group.session

    @property
    def rank(self) -> int:
        return self._roll.rank(self._post.peer)

    @property
    def size(self) -> int:
        """Workers, and this one, which may be a learner yet."""
        return len(self._roll.workers) + self.is_learner

    @property
    def is_learner(self) -> bool:
        """Whether this worker gets what the others have while they train."""
        return self._post.peer in self._roll.learners

    @property
    def has_learners(self) -> bool:
        return bool(self._roll.learners)

    @property
    def has_newcomers(self) -> bool:
        """Whether somebody waits here for the next boundary."""
        return any(arrival.here.epoch == NEWCOMER for arrival in self._post.arrivals())

    def check(self, error: JobError) -> None:
        """Raise an error that the next epoch would not be free of."""
        if self.group.session.closed or not isinstance(error, FAULTS):
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

    def rejoin(self, error: JobError) -> None:
        """As a learner whose epoch has ended, and the others go on without it: come as a newcomer once more."""
        if not isinstance(error, FAULTS):
            raise error
        _log.warning("epoch %d has ended for this learner, which starts over: %s", self._roll.epoch, error)
        self.end_epoch()
        self._leash()
        self._be_taken_in()

    def regroup(self, *, at_boundary: bool, teaches: bool = False) -> tuple[Change, bool]:
        """Form the next epoch with everybody who lives; the change, and whether all had nothing under way.

        Then newcomers are in it, and get what the others have; where the most senior worker `teaches`, one of them is,
        as a learner. A JobError says that this worker cannot go on.
        """
        before, timeout_s = self._roll, self._config.member.timeout_s
        deadline_s = time.monotonic() + timeout_s
        while (called := self._form(self._muster(at_boundary=at_boundary), teaches=teaches)) is None:
            if time.monotonic() >= deadline_s:
                raise DeadlineError(f"no epoch could begin within {timeout_s:g} s; see the log for why")
        lost = tuple(rank for rank, worker in enumerate(before.workers) if worker not in called.workers)
        joined = sum(worker not in before.workers for worker in called.workers)
        if before.members == self._roll.members and not called.is_boundary:
            self._faults.append(time.monotonic())
        change = Change(self.rank, self.size, joined, lost)
        words = _words(before, self._roll)
        _log.warning("epoch %d: rank %d of %d; %s", self.epoch, change.rank, change.size, words)
        return change, called.is_boundary

    # ---- from epoch to epoch ----

    def _enter(self, config: NativeConfig, conductor: Conductor | None) -> None:
        self.group = NativeGroup(config, conductor)

    def _leave(self, *, now: bool) -> None:
        self.group.close(now=now)

    def _form(self, muster: Muster, *, teaches: bool) -> m.Called | None:
        """The next epoch, by whoever leads; None where that is another one than it seemed, or the epoch was called and
        did not begin."""
        try:
            called = self._follow(muster)
            if called is None:
                return self._lead(muster, teaches=teaches)
        except LeftBehindError as error:
            raise given_up(str(error), self.rank) from None
        return called if self._reach(called) else None

    def _lead(self, muster: Muster, *, teaches: bool) -> m.Called | None:
        gathered = muster.gather()
        if gathered is None:
            return None
        try:
            self._check_listed(gathered.census)
            gathered.census.check(self._roll, self._minimum)
        except JobError as error:
            everybody = [*gathered.workers, *gathered.learners, *gathered.newcomers, *gathered.servers]
            muster.dismiss(everybody, error)
            raise
        is_boundary = muster.at_boundary and all(arrival.here.at_boundary for arrival in gathered.workers)
        learners: list[Arrival] = []
        promoted: list[Arrival] = []
        if is_boundary and teaches:
            promoted, learners = gathered.learners, gathered.newcomers[:1]
        elif is_boundary:
            promoted = [*gathered.learners, *gathered.newcomers]
        else:
            muster.dismiss(gathered.learners, PeerLostError("the others are not at the end of a step"))
        arrivals = [*gathered.workers, *promoted, *learners, *gathered.servers]
        roll = Roll(
            muster.next_epoch(arrivals),
            succession(self._roll, gathered.census.here, [arrival.here.peer for arrival in promoted]),
            tuple(arrival.here.peer for arrival in gathered.servers),
            tuple(arrival.here.peer for arrival in learners),
        )
        config = self._epoch_config(roll, self._post.peer.host, 0)
        conductor = Conductor(config.member, config.common())
        leading = muster.call(roll, conductor, arrivals, is_boundary=is_boundary)
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

    def _check_listed(self, census: Census) -> None:
        """Whoever was stopped until the others had ended, or is cut off from them, finds nobody who would tell it that
        they gave it up; but the members file has the last epoch that began."""
        mine = self._post.peer
        addresses = members_in(self._members_file)
        if addresses and (mine.host, mine.port) not in addresses:
            since = "cannot be reached" if census.silent else "have ended since"
            raise given_up(f"they went on without it and {since}", self._roll.rank(mine))

    def _epoch_config(self, roll: Roll, host: str, port: int) -> NativeConfig:
        config = super()._epoch_config(roll, host, port)
        evicts = self._evicts and len(roll.workers) > self._minimum
        return replace(config, member=replace(config.member, evicts=evicts))

    def _begin(self, roll: Roll) -> None:
        super()._begin(roll)
        if self._members_file is not None:
            write_members(self._members_file, roll.workers)

    # ---- called from the post's threads ----

    def _takes_newcomers(self) -> bool:
        """The most senior worker does: it leads."""
        with self._lock:
            return not self._mustering and not self._roll.seniors(self._post.peer)


def _watch(leading: Leading, over: threading.Event) -> None:
    """Let nobody wait for an epoch that one of the called does not reach."""
    while not over.wait(_WATCH_S):
        if leading.is_doomed():
            leading.conductor.close()
            return


def _words(before: Roll, after: Roll) -> str:
    """Who has gone and come."""
    gone = [before.name(each) for each in before.members if each not in after.members]
    joined = [after.name(each) for each in after.members if each not in before.members or each in before.learners]
    words = f"gone of the last one: {', '.join(gone)}" if gone else "nobody was lost"
    return words if not joined else f"{words}; new: {', '.join(joined)}"
