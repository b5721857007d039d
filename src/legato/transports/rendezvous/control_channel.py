"""The control channel: one member's connection to the conductor."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from legato.errors import ClosedError, DeadlineError, LegatoError, PeerLostError, ProtocolError, SecurityError
from legato.transports.rendezvous import forks
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.addresses import text
from legato.transports.rendezvous.join import JoinConfig, Joined, Who, dial
from legato.transports.rendezvous.keys import fetch_key
from legato.transports.rendezvous.limits import check_files
from legato.transports.rendezvous.session_keys import Stamps

_RETRY_S = 0.1
_SEND_S = 30
"""A conductor that reads nothing for so long is as good as gone."""


class ControlChannel:
    """Sends from any thread; what comes in is handed to `hear`, one after another, in the channel's own thread.

    `ended` is told once why nothing will come any more, unless the line was closed here.
    """

    def __init__(
        self,
        joined: Joined,
        *,
        hear: Callable[[m.Message], None],
        ended: Callable[[LegatoError], None],
    ) -> None:
        # Not settimeout: it would end the thread that waits for the conductor to speak, too.
        joined.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        self._socket = joined.socket
        self._stamps = Stamps(joined.keys.sending)
        self._inbox = m.Inbox(joined.keys.receiving)
        forks.in_children(self._socket.close)
        self._hear = hear
        self._ended = ended
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="legato-line", daemon=True)
        self._thread.start()

    def send(self, message: m.FromMember) -> None:
        data = m.encode(message)
        with self._lock:
            if self._closed:
                raise ClosedError("this member has left the job")
            try:
                self._socket.sendall(data + self._stamps.next(data))
            except OSError as error:
                raise PeerLostError(f"rank 0, which conducts the job, is gone ({error})", rank=0) from None

    def close(self) -> None:
        """Can be called twice, but not from `hear`."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing alone would not
            self._thread.join()
            self._socket.close()

    def _run(self) -> None:
        error: LegatoError = ProtocolError("a defect of legato ended the line to the conductor; its traceback is above")
        try:
            while data := self._socket.recv(1 << 16):
                for message in self._inbox.feed(data):
                    self._hear(message)
            error = PeerLostError("rank 0, which conducts the job, is gone; see its log for why", rank=0)
        except OSError as reason:
            error = PeerLostError(f"rank 0, which conducts the job, is gone ({reason})", rank=0)
        except LegatoError as reason:
            error = reason
        finally:
            if not self._closed:
                self._ended(error)


def call(host: str, port: int, config: JoinConfig, deadline_s: float) -> tuple[Joined, JoinConfig]:
    """Connect to the conductor, which may not be there yet; with the key that it gave, where there was none.

    The members of a job start in any order, and TCP has no way to wait for a listener: so it is asked again, every
    tenth of a second, until the deadline. A key that it gave may be that of an earlier job: then it is asked for
    again, too.
    """
    config.check_host(host)
    pause = threading.Event()
    while True:
        try:
            join = replace(config, key=fetch_key(port)) if config.lacks_key else config
            return dial(host, port, Who("conductor"), join, deadline_s), join
        except DeadlineError:
            reason: Exception = TimeoutError("it does not answer")
        except OSError as error:
            check_files(error)
            reason = error
        except SecurityError as error:
            if not config.lacks_key:
                raise
            reason = error
        if time.monotonic() + _RETRY_S >= deadline_s:
            way_in = "as this user, and without a LEGATO_KEY" if config.lacks_key else "and the port open"
            raise DeadlineError(
                f"no conductor at {text(host, port)} ({reason}); is rank 0 running there, {way_in}?", rank=0
            )
        pause.wait(_RETRY_S)
