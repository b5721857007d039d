"""The muster: how the members of an elastic job find each other again after the end of an epoch.

Everybody goes to the post of the most senior worker that lives; that one leads. It knocks at the posts of those who do
not come: who lives will come, since its epoch has ended, too. When no worker is outstanding, and no server either, or
not for longer than a heartbeat, the leader opens a conductor and calls all of them into the next epoch:

    worker, server                      leader
      ── Here ─────────────────────────►  everybody here, dead or silent?  ── knock ──► who is not here
      ◄─ Called: who, where ───────────  a census that may go on, a conductor for the next epoch
      ── joins the conductor as at the start of any job ──►

The same happens whatever has ended the epoch: a worker or a server that died, a link that broke, or newcomers who wait.

Note: a busy leader. Who does not answer in time is passed over, and may live: then two would lead, or somebody waits
where nobody will call. But whoever leads knocks at those who do not come. So a member that hears the knock of one whom
it has passed over goes there, whether it waits at a post in between or leads itself.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from legato.elastic.post import NEWCOMER, Arrival, LeftBehindError, Life, Post, knock, receive, visit
from legato.elastic.roll import Census, Roll
from legato.errors import DeadlineError, JobError, PeerLostError, ProtocolError
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.join import JoinConfig, Joined

_LOOK_S = 0.2
"""How often a leader looks who is here."""
_KNOCK_S = 1.0
"""How often it asks those who live and have not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MusterConfig:
    """How long a muster waits for whom."""

    answer_s: float
    """Who does not answer for so long is silent: the heartbeat."""
    timeout_s: float
    """How long workers that live may take to come. Servers and learners have `answer_s` from then on: nobody needs
    them."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Who has come to a leader, and waits."""

    census: Census
    """Of the workers of the last epoch."""
    workers: list[Arrival]
    """Of these, all but the leader."""
    newcomers: list[Arrival]
    """Workers that were in no epoch."""
    learners: list[Arrival]
    """Those of the last epoch, at a boundary: now they have what the workers have."""
    servers: list[Arrival]
    """Those of the last epoch, then others: they need nothing of anybody, so they come in at once."""


class Leading:
    """This worker has led. It watches those whom it has called: an epoch that one of them does not reach cannot begin,
    and nobody shall wait for it."""

    def __init__(self, called: m.Called, conductor: Conductor, arrivals: Sequence[Arrival]) -> None:
        self.called = called
        self.conductor = conductor
        self._arrivals = arrivals

    def is_doomed(self) -> bool:
        """Whether one of them has gone."""
        return not all(arrival.is_waiting for arrival in self._arrivals)

    def formed(self) -> None:
        for arrival in self._arrivals:
            arrival.connection.close()


class Muster:
    """One member's part in the end of an epoch."""

    def __init__(self, post: Post, roll: Roll, join: JoinConfig, config: MusterConfig, *, at_boundary: bool) -> None:
        self._post = post
        self._roll = roll
        self._join = join
        self._config = config
        self.at_boundary = at_boundary
        self._unneeded = (*(roll.learners if at_boundary else ()), *roll.servers)
        """They are called if they come; a learner that comes after a fault begins as a newcomer once more."""

    def follow(self) -> tuple[m.Called, Joined] | None:
        """Go to the most senior worker that lives, and wait until it calls; None where this is the one.

        A server never is: for it, None says that nobody is left. The connection tells the leader that this member
        lives, until the next epoch has begun. LeftBehindError where there is a later epoch already.
        """
        me = self._post.peer
        here = m.Here(self._roll.epoch, me, self.at_boundary, serves=me in self._roll.servers)
        deadline_s = time.monotonic() + self._config.timeout_s
        seniors, place = self._roll.seniors(me), 0
        self._post.forget_knocks()
        while place < len(seniors):
            passed_over = seniors[:place]
            called = self._be_called(seniors[place], passed_over, here, deadline_s)
            if called is not None:
                return called
            if self._post.was_knocked_by(passed_over):
                self._post.forget_knocks()
                place = 0
            else:
                place += 1
        return None

    def gather(self) -> Gathered | None:
        """As the most senior worker that lives: wait until everybody of the last epoch is here who lives.

        None where a more senior one lives after all, and leads. LeftBehindError where one of them is in a later epoch.
        """
        deadline_s = time.monotonic() + self._config.timeout_s
        me = self._post.peer
        seniors = self._roll.seniors(me)
        fate: dict[m.Peer, Life] = {}
        knock_at_s = 0.0
        unneeded_until_s: float | None = None
        while not self._post.was_knocked_by(seniors):
            known = {arrival.here.peer: arrival for arrival in self._post.arrivals() if self._is_expected(arrival)}
            expected = (*self._roll.workers, *self._unneeded)
            absent = [each for each in expected if each != me and each not in known and each not in fate]
            now_s = time.monotonic()
            if unneeded_until_s is None and all(each in self._unneeded for each in absent):
                unneeded_until_s = now_s + self._config.answer_s
            if not absent or (unneeded_until_s is not None and now_s >= unneeded_until_s):
                here = tuple(each for each in self._roll.workers if each == me or each in known)
                lost = [each for each in self._roll.workers if each not in here]
                census = Census(
                    here,
                    tuple(each for each in lost if fate[each] is Life.DEAD),
                    tuple(each for each in lost if fate[each] is Life.SILENT),
                )
                newcomers = self._newcomers()
                return Gathered(
                    census,
                    workers=[known[each] for each in here if each != me],
                    newcomers=[arrival for arrival in newcomers if not arrival.here.serves],
                    learners=[known[each] for each in self._roll.learners if each in known],
                    servers=[
                        *(known[each] for each in self._roll.servers if each in known),
                        *(arrival for arrival in newcomers if arrival.here.serves),
                    ],
                )
            if now_s >= deadline_s:
                names = ", ".join(map(self._roll.name, absent))
                raise DeadlineError(
                    f"{names} live, but have not come to form the next epoch within {self._config.timeout_s:g} s"
                )
            if now_s >= knock_at_s:
                lives = self._knock(absent)
                fate |= {each: life for each, life in lives.items() if life is not Life.ALIVE}
                knock_at_s = time.monotonic() + _KNOCK_S
            else:
                self._post.wait(_LOOK_S)
        return None

    def call(
        self,
        roll: Roll,
        conductor: Conductor,
        arrivals: Sequence[Arrival],
        *,
        is_boundary: bool,
    ) -> Leading:
        """Tell everybody of the next epoch."""
        host = self._post.peer.host
        called = m.Called(roll.epoch, roll.workers, roll.servers, roll.learners, is_boundary, host, conductor.port)
        for arrival in arrivals:
            self._post.release(arrival)
            arrival.send(called)
        return Leading(called, conductor, arrivals)

    def dismiss(self, arrivals: Sequence[Arrival], error: JobError) -> None:
        for arrival in arrivals:
            self._post.release(arrival)
            arrival.send(m.Dismissed(m.ErrorText.of(error)))
            arrival.connection.close()

    def _be_called(
        self, senior: m.Peer, passed_over: Sequence[m.Peer], here: m.Here, deadline_s: float
    ) -> tuple[m.Called, Joined] | None:
        """None where it is gone, or goes before it has called, or one of those who were passed over leads."""
        config = self._config
        _, connection = visit(senior, here, self._join, time.monotonic() + config.answer_s)
        if connection is None:
            return None
        connection.socket.settimeout(config.answer_s)
        inbox = m.Inbox(connection.keys.receiving)
        while True:
            try:
                message = receive(connection, inbox)
            except TimeoutError:
                if time.monotonic() >= deadline_s:
                    connection.close()
                    rank = self._roll.rank(senior)
                    raise DeadlineError(
                        f"rank {rank} has not formed the next epoch within {config.timeout_s:g} s", rank=rank
                    ) from None
                if not self._post.was_knocked_by(passed_over) and self._still_leads(senior, connection):
                    continue
                connection.close()
                return None
            except (OSError, ProtocolError):
                connection.close()
                return None
            connection.socket.settimeout(None)
            match message:
                case m.Called():
                    return message, connection
                case m.Dismissed(reason):
                    connection.close()
                    raise reason.error()
                case _:
                    connection.close()
                    return None

    def _still_leads(self, senior: m.Peer, connection: Joined) -> bool:
        try:
            return self._knock([senior])[senior] is Life.ALIVE
        except LeftBehindError:
            connection.close()
            raise

    def _knock(self, members: Sequence[m.Peer]) -> dict[m.Peer, Life]:
        """At all of them at once: a silent one takes as long as it may."""
        deadline_s = time.monotonic() + self._config.answer_s

        def one(member: m.Peer) -> Life:
            return knock(member, self._post.peer, self._join, deadline_s)

        with ThreadPoolExecutor(len(members), "legato-knock") as threads:
            return dict(zip(members, threads.map(one, members), strict=True))

    def _is_expected(self, arrival: Arrival) -> bool:
        """A learner that has started over is a newcomer, whatever it was."""
        peer, has_nothing = arrival.here.peer, arrival.here.epoch == NEWCOMER and not arrival.here.serves
        return (peer in self._roll.workers or peer in self._unneeded) and not has_nothing

    def _newcomers(self) -> list[Arrival]:
        """Those that were in no epoch. A worker that was given up is told so: it would bring back what the others have
        left. A server has nothing to bring."""
        strangers = [arrival for arrival in self._post.arrivals() if not self._is_expected(arrival)]
        newcomers = [arrival for arrival in strangers if arrival.here.serves or arrival.here.epoch == NEWCOMER]
        given_up_ones = [arrival for arrival in strangers if arrival not in newcomers]
        self.dismiss(given_up_ones, PeerLostError("the others have gone on without this rank; start it again"))
        return newcomers

    def next_epoch(self, arrivals: Sequence[Arrival]) -> int:
        """Beyond every epoch that anybody here was called into."""
        return max(self._roll.epoch, *(arrival.here.epoch for arrival in arrivals), 0) + 1
