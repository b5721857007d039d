"""The post: where a member of an elastic job can be reached from its first epoch to its end."""

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from legato.errors import DeadlineError, LegatoError, ProtocolError, SecurityError
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.join import JoinConfig, Joined, Who, dial
from legato.transports.rendezvous.listener import Listener
from legato.transports.rendezvous.session_keys import Stamps

MUSTER = "muster"
"""Whoever dials for this says `Here`, and waits until it is called or dismissed."""
NEWCOMER = -1
"""The epoch of those who were in none."""
SUMMON = "summon"
"""Whoever dials for this says with its greeting alone, and its own id in it, that it musters: its epoch has ended."""


class Life(Enum):
    """What a knock at a post has shown."""

    ALIVE = auto()
    DEAD = auto()
    SILENT = auto()


class LeftBehindError(LegatoError):
    """The others have formed an epoch without this member."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A member that has come here, and waits."""

    here: m.Here
    connection: Joined

    def send(self, message: m.BetweenMembers) -> None:
        """Its answer; whoever has gone meanwhile is missed by the leader."""
        with contextlib.suppress(OSError):
            say(self.connection, message)

    @property
    def is_waiting(self) -> bool:
        """Whether it still holds its end: it says nothing more, so what can be read is its going."""
        try:
            return bool(self.connection.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class Post:
    """Listens for as long as a worker trains, or a server serves.

    `summoned` is told the id of whoever knocks, and returns why that one is wrong, or an empty string.
    """

    def __init__(
        self, host: str, config: JoinConfig, summoned: Callable[[str], str], takes_newcomers: Callable[[], bool]
    ) -> None:
        self._config = config
        self._summoned = summoned
        self._takes_newcomers = takes_newcomers
        self._changed = threading.Condition()
        self._arrivals: dict[str, Arrival] = {}
        self._knockers: set[str] = set()
        self._listener = Listener(host, 0, config, welcome=self._welcome, take=self._take)
        self.peer = m.Peer(secrets.token_hex(8), self._listener.host, self._listener.port)

    def arrivals(self) -> list[Arrival]:
        """Who is here and still waits, in the order in which they came."""
        with self._changed:
            gone = [name for name, arrival in self._arrivals.items() if not arrival.is_waiting]
            for name in gone:
                self._arrivals.pop(name).connection.close()
            return list(self._arrivals.values())

    def wait(self, timeout_s: float) -> None:
        """Until somebody comes, or for so long."""
        with self._changed:
            self._changed.wait(timeout_s)

    def was_knocked_by(self, members: Sequence[m.Peer]) -> bool:
        """Whether one of these has knocked since `forget_knocks`."""
        with self._changed:
            return any(each.id in self._knockers for each in members)

    def forget_knocks(self) -> None:
        with self._changed:
            self._knockers.clear()

    def release(self, arrival: Arrival) -> None:
        """It has been called, or dismissed: it waits no longer."""
        with self._changed:
            if self._arrivals.get(arrival.here.peer.id) is arrival:
                del self._arrivals[arrival.here.peer.id]

    def close(self) -> None:
        """Nobody is here any more. Can be called twice."""
        self._listener.close()
        with self._changed:
            for arrival in self._arrivals.values():
                arrival.connection.close()
            self._arrivals.clear()

    # ---- called from the listener's threads ----

    def _welcome(self, who: Who) -> str:
        match who.purpose:
            case "summon":
                return self._hear(who.job)
            case "muster":
                lost = who.job == str(NEWCOMER) and not self._takes_newcomers()
                return "newcomers ask the most senior worker" if lost else ""
            case _:
                return f"a member of an elastic job is here, not what {who.purpose!r} needs"

    def _hear(self, knocker: str) -> str:
        refusal = self._summoned(knocker)
        if not refusal:
            with self._changed:
                self._knockers.add(knocker)
                self._changed.notify_all()
        return refusal

    def _take(self, connection: Joined, who: Who) -> None:
        if who.purpose == SUMMON:
            connection.close()
            return
        try:
            connection.socket.settimeout(self._config.handshake_s)
            here = receive(connection)
            connection.socket.settimeout(None)
        except (OSError, ProtocolError):
            connection.close()
            return
        if not isinstance(here, m.Here):
            connection.close()
            return
        with self._changed:
            earlier = self._arrivals.pop(here.peer.id, None)
            self._arrivals[here.peer.id] = Arrival(here, connection)
            self._changed.notify_all()
        if earlier is not None:
            earlier.connection.close()


def knock(peer: m.Peer, knocker: m.Peer, config: JoinConfig, deadline_s: float) -> Life:
    """Tell a member that its epoch has ended, and hear whether it lives."""
    life, connection = _dial(peer, Who(SUMMON, knocker.id), config, deadline_s)
    if connection is not None:
        connection.close()
    return life


def visit(peer: m.Peer, here: m.Here, config: JoinConfig, deadline_s: float) -> tuple[Life, Joined | None]:
    """Come to a worker's post; the connection on which it will call, if it lives."""
    life, connection = _dial(peer, Who(MUSTER, str(here.epoch)), config, deadline_s)
    if connection is not None:
        try:
            say(connection, here)
        except OSError:
            connection.close()
            return Life.DEAD, None
    return life, connection


def say(connection: Joined, message: m.BetweenMembers) -> None:
    """The one message that each side sends."""
    data = m.encode(message)
    connection.socket.sendall(data + Stamps(connection.keys.sending).next(data))


def receive(connection: Joined, inbox: m.Inbox | None = None) -> m.Message:
    """The other side's message; ConnectionError when there is none, TimeoutError after the socket's timeout.

    Whoever goes on after that gives an `inbox`, which keeps what has come of it.
    """
    inbox = inbox or m.Inbox(connection.keys.receiving)
    while True:
        data = connection.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("it went away")
        for message in inbox.feed(data):
            return message


def _dial(peer: m.Peer, who: Who, config: JoinConfig, deadline_s: float) -> tuple[Life, Joined | None]:
    for _ in range(2):
        try:
            return Life.ALIVE, dial(peer.host, peer.port, who, config, deadline_s)
        except SecurityError as error:
            raise LeftBehindError(str(error)) from None
        except (DeadlineError, TimeoutError):
            return Life.SILENT, None
        except ConnectionRefusedError:
            return Life.DEAD, None
        except (
            ConnectionError
        ):  # cut in its greeting: by a link that broke, or by its end, which the next attempt shows
            continue
        except OSError:  # no route: its host may live
            return Life.SILENT, None
        except ProtocolError:  # somebody else listens there now
            return Life.DEAD, None
    return Life.DEAD, None
