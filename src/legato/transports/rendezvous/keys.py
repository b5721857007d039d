"""Keys: the secret that a job's members share, and how those on one machine get one where nobody has given it.

Note: the key of a job on loopback
    conductor                                              member
      makes 32 random bytes
      listens at the abstract name `legato-key-PORT` ◄────   connects; asks the kernel whose the listener is
      asks the kernel whose the dialer is ───── key ─────►   then joins with it (join.py)

Abstract names belong to a network namespace, as loopback does, and vanish with their process: no file can be left over,
guessed or read by others. The kernel (SO_PEERCRED) says which user is at the other end; it must be this process's
effective user, also for root, whose job would otherwise be open to everyone that root's processes talk to.
"""

import contextlib
import errno
import logging
import os
import secrets
import socket
import struct
import threading

from legato.errors import InputError, SecurityError
from legato.transports.rendezvous import forks
from legato.transports.rendezvous.drop_log import DropLog

MIN_KEY_BYTES = 16
_KEY_BYTES = 32
_FETCH_S = 5.0
_BREATH_S = 0.1
"""Pause when a connection cannot be taken: it would fail again at once."""
_CREDENTIALS = struct.Struct("iII")


def check_key(key: bytes, name: str) -> None:
    """Refuse a key that can be guessed; `name` says in the error who gave it."""
    if len(key) < MIN_KEY_BYTES:
        raise InputError(
            f"{name} holds {len(key)} bytes; accepted are {MIN_KEY_BYTES} or more, such as `openssl rand -hex 32` makes"
        )


def make_key() -> bytes:
    return secrets.token_bytes(_KEY_BYTES)


def check_user(connection: socket.socket) -> None:
    """Refuse a process on this machine that belongs to another user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    if user != os.geteuid():
        raise SecurityError(f"it belongs to user {user}, this process to user {os.geteuid()}")


class KeyDoor:
    """Hands a job's key to processes of this user on this machine, from construction to `close`."""

    def __init__(self, port: int, key: bytes) -> None:
        self._key = key
        self._closed = threading.Event()
        self._drops = DropLog(logging.getLogger(__name__))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(_name(port))
            self._socket.listen(512)
        except OSError as error:
            self._socket.close()
            raise InputError(
                f"cannot hand out a key for port {port} ({error.strerror}); give a free port, or set LEGATO_KEY"
            ) from None
        forks.in_children(self._socket.close)
        self._thread = threading.Thread(target=self._run, name=f"legato-key:{port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Can be called twice."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()
        self._drops.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._closed.is_set():
                    self._drops.add("a process on this host", f"cannot take its connection ({error})")
                    self._closed.wait(_BREATH_S)
                continue
            with connection:
                self._hand_out(connection)

    def _hand_out(self, connection: socket.socket) -> None:
        try:
            check_user(connection)
            connection.sendall(self._key)  # its buffer is empty: this does not wait
        except (SecurityError, OSError) as error:
            self._drops.add("a process on this host", error)


def fetch_key(port: int) -> bytes:
    """The key of the job whose conductor is at this port of loopback; OSError while there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_FETCH_S)
        connection.connect(_name(port))
        check_user(connection)
        key = connection.recv(_KEY_BYTES, socket.MSG_WAITALL)
        if len(key) < _KEY_BYTES:
            raise ConnectionResetError(errno.ECONNRESET, "it did not give its key")
        return key


def _name(port: int) -> str:
    return f"\0legato-key-{port}"
