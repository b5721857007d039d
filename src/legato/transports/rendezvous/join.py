"""Join: how two members convince each other, before anything else, that both belong to the job.

Note: the join
    dialer                                             listener
      ── magic, length, who I am (JSON), nonce ───────►   bounded, read before a deadline
      ◄─ magic, nonce ─────────────────────────────────
      ── HMAC(key, "dialer" + everything so far) ──────►   the dialer proves first, so a scanner learns nothing
      ◄─ "Y" + HMAC(key, "listener" + everything) ─────   or "N", length, a reason

Both nonces are in both proofs, so neither can be replayed; the two labels differ, so neither can be reflected; what
the dialer says of itself is in them too, so it cannot be changed on the way. Where nobody gives a key, members on
loopback get one from the conductor (keys.py). Only with `insecure` the same bytes travel with an empty key: it keeps
strangers' protocols out, not attackers.
"""

import dataclasses
import hmac
import json
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field

from legato.errors import DeadlineError, InputError, ProtocolError, SecurityError
from legato.records import build
from legato.transports.rendezvous.addresses import is_loopback
from legato.transports.rendezvous.keys import check_key, check_user

MAGIC = b"LEGATO\x00\x01"
_LENGTH = struct.Struct("!H")
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_MAX_WHO_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinConfig:
    """What a member needs to join others."""

    key: bytes | None = field(default=None, repr=False)
    """The job's shared key; None gets one from the conductor on loopback, and does without one if `insecure`."""
    insecure: bool = False
    """Talk without a key, on machines and a network where everybody is trusted."""
    handshake_s: float = 10.0
    """How long a peer may take to prove itself."""

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key, "key")
        if not self.handshake_s > 0:
            raise InputError(f"handshake_s={self.handshake_s} must be more than 0")

    @property
    def lacks_key(self) -> bool:
        """Whether nobody can join with this before the conductor has given a key."""
        return self.key is None and not self.insecure

    def check_host(self, host: str) -> None:
        """Refuse to listen on, or dial, a host that strangers can reach while there is no key."""
        if self.lacks_key and not is_loopback(host):
            raise SecurityError(
                f"{host} can be reached by other machines and there is no key: set LEGATO_KEY or LEGATO_KEY_FILE to "
                "the same secret on every member, or say --insecure (insecure=True) where everybody is trusted"
            )


@dataclass(frozen=True, slots=True)
class Who:
    """What a dialer says of itself, and wants."""

    purpose: str
    """`conductor` or `mesh`."""
    job: str = ""
    """The job's number, from the conductor; empty before it is known."""
    member: int = -1
    """The dialer's member number; -1 before it is known."""
    index: int = 0
    """Which of several connections between the same two members this is."""


def dial(host: str, port: int, who: Who, config: JoinConfig, deadline_s: float) -> socket.socket:
    """Connect and join; OSError while nobody listens there, SecurityError when the other side refuses."""
    config.check_host(host)
    connection = socket.create_connection((host, port), timeout=_left(deadline_s))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _joined(connection, who, config, deadline_s)


def dial_here(door: str, who: Who, config: JoinConfig, deadline_s: float) -> socket.socket:
    """The same at the door of a member on this host."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left(deadline_s))
        connection.connect(f"\0{door}")
        check_user(connection)
    except BaseException:
        connection.close()
        raise
    return _joined(connection, who, config, deadline_s)


def _joined(connection: socket.socket, who: Who, config: JoinConfig, deadline_s: float) -> socket.socket:
    try:
        _prove_as_dialer(connection, who, config, min(deadline_s, time.monotonic() + config.handshake_s))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def accept(connection: socket.socket, config: JoinConfig) -> tuple[Who, "Answer"]:
    """Read who dials and check its proof. The caller then says yes or no through the answer."""
    if connection.family == socket.AF_UNIX:
        check_user(connection)
    else:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline_s = time.monotonic() + config.handshake_s
    head = _receive(connection, len(MAGIC), deadline_s)
    if head != MAGIC:
        raise ProtocolError(f"not a member of a legato job (it sent {head!r})")
    length = _receive(connection, _LENGTH.size, deadline_s)
    if _LENGTH.unpack(length)[0] > _MAX_WHO_BYTES:
        raise ProtocolError(f"a greeting of {_LENGTH.unpack(length)[0]} bytes exceeds {_MAX_WHO_BYTES}")
    body = _receive(connection, _LENGTH.unpack(length)[0], deadline_s)
    nonce = _receive(connection, _NONCE_BYTES, deadline_s)
    reply = MAGIC + secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(reply)
    transcript = head + length + body + nonce + reply
    answer = Answer(connection, config, transcript)
    proof = _receive(connection, _PROOF_BYTES, deadline_s)
    if not hmac.compare_digest(proof, _proof(config, b"dialer", transcript)):
        answer.no("the keys differ: LEGATO_KEY or LEGATO_KEY_FILE must hold the same secret on every member")
        raise SecurityError("it does not hold the job's key")
    try:
        return build(Who, json.loads(body)), answer
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"its greeting cannot be read ({error!r:.100})") from None


class Answer:
    """The listener's last word of the join."""

    def __init__(self, connection: socket.socket, config: JoinConfig, transcript: bytes) -> None:
        self._connection = connection
        self._config = config
        self._transcript = transcript

    def yes(self) -> None:
        self._connection.sendall(b"Y" + _proof(self._config, b"listener", self._transcript))
        self._connection.settimeout(None)

    def no(self, reason: str) -> None:
        body = reason.encode()[:_MAX_WHO_BYTES]
        self._connection.sendall(b"N" + _LENGTH.pack(len(body)) + body)


def _prove_as_dialer(connection: socket.socket, who: Who, config: JoinConfig, deadline_s: float) -> None:
    body = json.dumps(dataclasses.asdict(who)).encode()
    greeting = MAGIC + _LENGTH.pack(len(body)) + body + secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(greeting)
    reply = _receive(connection, len(MAGIC) + _NONCE_BYTES, deadline_s)
    if not reply.startswith(MAGIC):
        raise ProtocolError(f"what listens there is no member of a legato job (it answered {reply[:8]!r})")
    transcript = greeting + reply
    connection.sendall(_proof(config, b"dialer", transcript))
    if _receive(connection, 1, deadline_s) != b"Y":
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline_s))
        reason = _receive(connection, min(length, _MAX_WHO_BYTES), deadline_s).decode(errors="replace")
        raise SecurityError(f"refused: {reason}")
    proof = _receive(connection, _PROOF_BYTES, deadline_s)
    if not hmac.compare_digest(proof, _proof(config, b"listener", transcript)):
        raise SecurityError("what listens there does not hold the job's key")


def _proof(config: JoinConfig, label: bytes, transcript: bytes) -> bytes:
    assert not config.lacks_key, "a proof without a key"
    return hmac.digest(config.key or b"", label + transcript, "sha256")


def _receive(connection: socket.socket, num_bytes: int, deadline_s: float) -> bytes:
    """Exactly `num_bytes`, or an error: ConnectionError when the peer goes first, DeadlineError when it is slow."""
    data = b""
    while len(data) < num_bytes:
        connection.settimeout(_left(deadline_s))
        try:
            more = connection.recv(num_bytes - len(data))
        except TimeoutError:
            raise DeadlineError("it did not finish the join in time") from None
        if not more:
            raise ConnectionError("it went away during the join")
        data += more
    return data


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise DeadlineError("it did not finish the join in time")
    return left_s
