"""A listener: takes connections, lets in those that join, drops the others with one line."""

import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable

from legato.errors import InputError, LegatoError
from legato.transports.rendezvous import forks
from legato.transports.rendezvous.addresses import text
from legato.transports.rendezvous.join import JoinConfig, Who, accept
from legato.transports.rendezvous.shared_path import listen_here

_MAX_HANDSHAKES = 256
"""Strangers that may be on the doorstep at once; each holds a thread for `handshake_s` at most."""
_BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
"""What `accept` says of a socket that cannot listen; every other error is about one peer, or passes."""
_BREATH_S = 0.1
"""Pause after an error: when the machine has no descriptor left, accept would fail again at once."""

_log = logging.getLogger(__name__)


class Listener:
    """Listens on one address from construction to `close`; without a host, at a door for members on this one.

    `welcome` is asked with what an authenticated dialer says of itself: it returns why not, or an empty string;
    `take` then owns the connection. Both are called from a thread of the listener's, one per connection, so a peer
    that says nothing delays nobody.
    """

    def __init__(
        self,
        host: str | None,
        port: int,
        config: JoinConfig,
        *,
        welcome: Callable[[Who], str],
        take: Callable[[socket.socket, Who], None],
    ) -> None:
        if host is not None:
            config.check_host(host)
        self._config = config
        self._welcome = welcome
        self._take = take
        self._socket = listen_here() if host is None else _listen(host, port)
        forks.in_children(self._socket.close)
        address = self._socket.getsockname()
        self.host, self.port = ("", 0) if host is None else (str(address[0]), int(address[1]))
        self.door = address[1:].decode() if host is None else ""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._doorstep: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name=f"legato-listener:{self.door or self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and drop who is still on the doorstep. Can be called twice; not from `welcome` or `take`."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            for connection in self._doorstep:
                _hang_up(connection)
            threads = list(self._threads)
        _hang_up(self._socket)  # wakes the thread in accept
        for thread in (self._thread, *threads):
            thread.join()
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                if error.errno in _BROKEN:
                    raise
                _log.warning("cannot take a connection (%s)", error)
                self._closed.wait(_BREATH_S)
                continue
            self._greet(connection, text(*peer[:2]) if peer else "a process on this host")

    def _greet(self, connection: socket.socket, peer: str) -> None:
        forks.in_children(connection.close)
        thread = threading.Thread(
            target=self._handshake, args=(connection, peer), name=f"legato-join:{peer}", daemon=True
        )
        with self._lock:
            reason = ""
            if len(self._doorstep) >= _MAX_HANDSHAKES:
                reason = f"{_MAX_HANDSHAKES} others have not finished their join"
            elif not self._closed.is_set():
                try:
                    thread.start()
                    self._doorstep.add(connection)
                    self._threads.add(thread)
                    return
                except RuntimeError as error:
                    reason = str(error)  # no thread could be started
        if reason:
            _log.warning("dropped %s: %s", peer, reason)
        connection.close()

    def _handshake(self, connection: socket.socket, peer: str) -> None:
        joined = False
        try:
            who, answer = accept(connection, self._config)
            refusal = self._welcome(who)
            if refusal:
                answer.no(refusal)
                _log.warning("dropped %s: %s", peer, refusal)
            else:
                answer.yes()
                joined = True
        except (LegatoError, OSError) as error:
            # Those that were still on the doorstep when the listener closed have done nothing wrong.
            if not (self._closed.is_set() and isinstance(error, ConnectionError)):
                _log.warning("dropped %s: %s", peer, error)
        with self._lock:
            self._doorstep.remove(connection)
            joined = joined and not self._closed.is_set()
        if joined:
            self._take(connection, who)
        else:
            connection.close()
        with self._lock:
            self._threads.remove(threading.current_thread())


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
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
