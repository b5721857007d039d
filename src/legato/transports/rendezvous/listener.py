"""A listener: takes connections, lets in those that join, drops the others.

Note: the doorstep. Whoever can reach the port can connect, so nobody costs much before it has proven that it holds the
key: one thread waits for all of them at once, and each has a socket, a buffer for one greeting and `handshake_s`. When
there are too many, the oldest goes: a member is through in two round trips, those who only occupy a place are not. What
is logged of them is bounded, too.
"""

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from legato.errors import InputError, LegatoError
from legato.transports.rendezvous import forks
from legato.transports.rendezvous.addresses import text
from legato.transports.rendezvous.drop_log import DropLog
from legato.transports.rendezvous.join import Answer, Examination, JoinConfig, Joined, Who
from legato.transports.rendezvous.keys import check_user
from legato.transports.rendezvous.shared_path import listen_here
from legato.transports.rendezvous.tcp import unconnected

MAX_STRANGERS = 256
"""Connections that may be on the doorstep at once."""
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What `accept` says when there is no room for one more connection; a stranger then makes some."""
_BREATH_S = 0.1
"""Pause after an error: accept would fail again at once."""


@dataclass(slots=True, eq=False)
class _Stranger:
    """A connection on the doorstep."""

    socket: socket.socket
    peer: str
    until_s: float
    examination: Examination


class Listener:
    """Listens on one address from construction to `close`; without a host, at a door for members on this one.

    `welcome` is asked with what an authenticated dialer says of itself: it returns why not, or an empty string;
    `take` then owns the connection. Both are called from a thread of the connection's own, so one that waits delays
    nobody.
    """

    def __init__(
        self,
        host: str | None,
        port: int,
        config: JoinConfig,
        *,
        welcome: Callable[[Who], str],
        take: Callable[[Joined, Who], None],
    ) -> None:
        if host is not None:
            config.check_host(host)
        self._config = config
        self._welcome = welcome
        self._take = take
        self._selector = selectors.DefaultSelector()
        try:
            self._socket = listen_here() if host is None else _listen(host, port)
        except BaseException:
            self._selector.close()
            raise
        self._socket.setblocking(False)
        address = self._socket.getsockname()
        self.host, self.port = ("", 0) if host is None else (str(address[0]), int(address[1]))
        self.door = address[1:].decode() if host is None else ""
        self._drops = DropLog(logging.getLogger(__name__))
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._strangers: dict[_Stranger, None] = {}
        """The oldest first. The listener's thread's own."""
        self._guests: dict[threading.Thread, socket.socket] = {}
        """Those that have proven themselves and are not in yet."""
        self._selector.register(self._socket, selectors.EVENT_READ)
        for mine in (self._socket, self._selector):
            forks.in_children(mine.close)
        self._thread = threading.Thread(target=self._run, name=f"legato-listener:{self.door or self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and drop who is not in yet. Can be called twice; not from `welcome` or `take`."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            for connection in self._guests.values():
                _hang_up(connection)
            threads = list(self._guests)
        _hang_up(self._socket)  # wakes the thread
        for thread in (self._thread, *threads):
            thread.join()
        self._socket.close()
        self._drops.close()

    # ---- the listener's thread ----

    def _run(self) -> None:
        while not self._closed.is_set():
            for key, _ in self._selector.select(self._patience_s()):
                if key.data is None:
                    self._accept()
                else:
                    self._attend(key.data)
            now_s = time.monotonic()
            for stranger in [each for each in self._strangers if each.until_s <= now_s]:
                self._drop(stranger, "it did not finish the join in time")
        # Those that were still on the doorstep have done nothing wrong.
        for stranger in self._strangers:
            stranger.socket.close()
        self._selector.close()

    def _patience_s(self) -> float | None:
        oldest = next(iter(self._strangers), None)
        return None if oldest is None else max(oldest.until_s - time.monotonic(), 0.0)

    def _accept(self) -> None:
        try:
            connection, address = self._socket.accept()
        except BlockingIOError:
            return  # it has gone already
        except OSError as error:
            if self._closed.is_set():
                return
            if error.errno in _SHORT_OF and self._strangers:
                self._drop(next(iter(self._strangers)), f"there is no room for others ({error})")
                return
            # Whatever it is: a job whose listener ends could not be joined any more.
            self._drops.add("a connection", f"cannot take it ({error})")
            self._closed.wait(_BREATH_S)
            return
        peer = text(*address[:2]) if address else "a process on this host"
        forks.in_children(connection.close)
        connection.setblocking(False)
        stranger = _Stranger(connection, peer, time.monotonic() + self._config.handshake_s, Examination(self._config))
        self._strangers[stranger] = None
        try:
            if connection.family == socket.AF_UNIX:
                check_user(connection)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, stranger)
        except (LegatoError, OSError) as error:
            self._drop(stranger, error)
        if len(self._strangers) > MAX_STRANGERS:
            self._drop(next(iter(self._strangers)), f"{MAX_STRANGERS} others came after it, and it has not joined yet")

    def _attend(self, stranger: _Stranger) -> None:
        if stranger not in self._strangers:
            return  # dropped in this very turn, for another
        examination = stranger.examination
        try:
            data = stranger.socket.recv(examination.num_wanted)
            if not data:
                raise ConnectionError("it went away during the join")
            reply = examination.feed(data)
            if reply:
                stranger.socket.send(reply)  # into an empty buffer: it takes all of it
            if examination.num_wanted:
                return
            who, answer = examination.verdict(stranger.socket)
        except BlockingIOError:
            return
        except (LegatoError, OSError) as error:
            self._drop(stranger, error)
            return
        self._admit(stranger, who, answer)

    def _drop(self, stranger: _Stranger, reason: object) -> None:
        self._drops.add(stranger.peer, reason)
        self._forget(stranger)
        stranger.socket.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger]
        with contextlib.suppress(KeyError):  # dropped before it was watched
            self._selector.unregister(stranger.socket)

    def _admit(self, stranger: _Stranger, who: Who, answer: Answer) -> None:
        """It has the key. From here on it may take its time, in a thread of its own."""
        self._forget(stranger)
        connection = stranger.socket
        connection.settimeout(self._config.handshake_s)
        thread = threading.Thread(
            target=self._let_in, args=(connection, stranger.peer, who, answer), name=f"legato-join:{stranger.peer}"
        )
        thread.daemon = True
        with self._lock:
            if self._closed.is_set():
                connection.close()
                return
            try:
                thread.start()
            except RuntimeError as error:  # no thread could be started
                self._drops.add(stranger.peer, error)
                connection.close()
                return
            self._guests[thread] = connection

    # ---- a guest's thread ----

    def _let_in(self, connection: socket.socket, peer: str, who: Who, answer: Answer) -> None:
        joined: Joined | None = None
        try:
            refusal = self._welcome(who)
            if refusal:
                answer.no(refusal)
                self._drops.add(peer, refusal)
            else:
                joined = answer.yes()
        except (LegatoError, OSError) as error:
            if not self._closed.is_set():
                self._drops.add(peer, error)
        with self._lock:
            is_closed = self._closed.is_set()
        if joined is None or is_closed:
            connection.close()
        else:
            self._take(joined, who)
        with self._lock:
            self._guests.pop(threading.current_thread(), None)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = unconnected(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen at {text(host, port)} ({error.strerror}); give a free port of this machine"
        ) from None
    return listening


def _hang_up(connection: socket.socket) -> None:
    """End a socket under another thread's call on it, which then returns; closing alone would not wake it."""
    with contextlib.suppress(OSError):  # it was not, or is no longer, connected
        connection.shutdown(socket.SHUT_RDWR)
