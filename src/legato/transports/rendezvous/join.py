"""Join: how two members convince each other, before anything else, that both belong to the job.

Note: the join
    dialer                                             listener
      ── magic, length, who I am (JSON), nonce ───────►   bounded, read before a deadline
      ◄─ magic, nonce ─────────────────────────────────
      ── HMAC(key, "dialer" + everything so far) ──────►   the dialer proves first, so a scanner learns nothing
      ◄─ "Y" + HMAC(key, "listener" + everything) ─────   or "N", length, a reason

Both nonces are in both proofs, so neither can be replayed; the two labels differ, so neither can be reflected; what
the dialer says of itself, and whom it dials, is in them too, so it cannot be changed on the way. What protects the
bytes that follow is made of the same (session_keys.py). Where nobody gives a key, members on loopback get one from the
conductor (keys.py). Only with `insecure` the same bytes travel with an empty key: it keeps strangers' protocols out,
not attackers.
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
from legato.transports.rendezvous.session_keys import SessionKeys
from legato.transports.rendezvous.tcp import connect

MAGIC = b"LEGATO\x00\x02"
_LENGTH = struct.Struct("!H")
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_MAX_WHO_BYTES = 1024
_PREFIX_BYTES = len(MAGIC) + _LENGTH.size


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
    listener: int = -1
    """The member that it dials, so that nobody can lead it to another; -1 before that is known."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A connection, and what protects it from now on."""

    socket: socket.socket
    keys: SessionKeys

    def close(self) -> None:
        self.socket.close()


def dial(host: str, port: int, who: Who, config: JoinConfig, deadline_s: float) -> Joined:
    """Connect and join; OSError while nobody listens there, SecurityError when the other side refuses."""
    config.check_host(host)
    connection = connect(host, port, _left(deadline_s))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _joined(connection, who, config, deadline_s)


def dial_here(door: str, who: Who, config: JoinConfig, deadline_s: float) -> Joined:
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


def _joined(connection: socket.socket, who: Who, config: JoinConfig, deadline_s: float) -> Joined:
    try:
        keys = _prove_as_dialer(connection, who, config, min(deadline_s, time.monotonic() + config.handshake_s))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return Joined(connection, keys)


class Examination:
    """The listener's side of a join up to the proof, without a socket: bytes in, bytes to send out.

    What it holds of a dialer who has proven nothing is bounded: a greeting and a proof.
    """

    def __init__(self, config: JoinConfig) -> None:
        self._config = config
        self._received = b""
        self._reply = b""

    @property
    def num_wanted(self) -> int:
        """How many bytes it still needs before it can go on; 0 when the dialer has proven itself."""
        return self._end() - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """Up to `num_wanted` bytes of the dialer's; what it is to be sent. ProtocolError when they are no greeting."""
        self._received += data
        if not self._received.startswith(MAGIC[: len(self._received)]):
            raise ProtocolError(f"{_other_than_ours(self._received)} (it sent {self._received[: len(MAGIC)]!r})")
        if len(self._received) >= _PREFIX_BYTES and self._who_bytes > _MAX_WHO_BYTES:
            raise ProtocolError(f"a greeting of {self._who_bytes} bytes exceeds {_MAX_WHO_BYTES}")
        if self._reply or len(self._received) < _PREFIX_BYTES or self.num_wanted:
            return b""
        self._reply = MAGIC + secrets.token_bytes(_NONCE_BYTES)
        return self._reply

    def verdict(self, connection: socket.socket) -> tuple[Who, "Answer"]:
        """Who has proven itself; the caller then says yes or no through the answer. SecurityError: it has not."""
        greeting = self._received[:-_PROOF_BYTES]
        answer = Answer(connection, self._config, greeting + self._reply)
        proof = _proof(self._config, b"dialer", greeting + self._reply)
        if not hmac.compare_digest(self._received[-_PROOF_BYTES:], proof):
            answer.no("the keys differ: LEGATO_KEY or LEGATO_KEY_FILE must hold the same secret on every member")
            raise SecurityError("it does not hold the job's key")
        try:
            return build(Who, json.loads(greeting[_PREFIX_BYTES:-_NONCE_BYTES])), answer
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"its greeting cannot be read ({error!r:.100})") from None

    @property
    def _who_bytes(self) -> int:
        return int(_LENGTH.unpack_from(self._received, len(MAGIC))[0])

    def _end(self) -> int:
        """Where the bytes end that are wanted next: the prefix, the greeting, the proof."""
        if len(self._received) < _PREFIX_BYTES:
            return _PREFIX_BYTES
        return _PREFIX_BYTES + self._who_bytes + _NONCE_BYTES + (_PROOF_BYTES if self._reply else 0)


class Answer:
    """The listener's last word of the join."""

    def __init__(self, connection: socket.socket, config: JoinConfig, transcript: bytes) -> None:
        self._connection = connection
        self._config = config
        self._transcript = transcript

    def yes(self) -> Joined:
        self._connection.sendall(b"Y" + _proof(self._config, b"listener", self._transcript))
        self._connection.settimeout(None)
        return Joined(self._connection, SessionKeys.of_listener(self._config.key or b"", self._transcript))

    def no(self, reason: str) -> None:
        body = reason.encode()[:_MAX_WHO_BYTES]
        self._connection.sendall(b"N" + _LENGTH.pack(len(body)) + body)


def _prove_as_dialer(connection: socket.socket, who: Who, config: JoinConfig, deadline_s: float) -> SessionKeys:
    body = json.dumps(dataclasses.asdict(who)).encode()
    greeting = MAGIC + _LENGTH.pack(len(body)) + body + secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(greeting)
    reply = _receive(connection, len(MAGIC) + _NONCE_BYTES, deadline_s)
    if not reply.startswith(MAGIC):
        raise ProtocolError(f"what listens there is {_other_than_ours(reply)} (it answered {reply[: len(MAGIC)]!r})")
    transcript = greeting + reply
    connection.sendall(_proof(config, b"dialer", transcript))
    if _receive(connection, 1, deadline_s) != b"Y":
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline_s))
        reason = _receive(connection, min(length, _MAX_WHO_BYTES), deadline_s).decode(errors="replace")
        raise SecurityError(f"refused: {reason}")
    proof = _receive(connection, _PROOF_BYTES, deadline_s)
    if not hmac.compare_digest(proof, _proof(config, b"listener", transcript)):
        raise SecurityError("what listens there does not hold the job's key")
    return SessionKeys.of_dialer(config.key or b"", transcript)


def _other_than_ours(greeting: bytes) -> str:
    is_ours = greeting.startswith(MAGIC[:-1])
    return "a member that runs another version of legato" if is_ours else "no member of a legato job"


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
