"""Session keys: what protects a connection once it has been joined.

Note: from the job's key to a connection's
    HKDF-SHA256 (RFC 5869) of the job's key, with what both sides have said in the join (join.py) as its salt, gives a
    key for each direction. Both nonces are in there, so every connection has keys of its own, and a new session new
    ones; and so is who dials whom. Whoever listened in has the salt, but not the job's key.

Between engines they protect frames (native/engine/net/records.hpp). On the control channel every message is followed by
a stamp, HMAC-SHA256 of its number in its direction and its bytes: one that was changed, repeated, left out or moved is
refused. The numbers do not travel.
"""

import hmac
from dataclasses import dataclass, field

STAMP_BYTES = 32


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """The keys of one connection, as one of its ends uses them."""

    sending: bytes = field(repr=False)
    receiving: bytes = field(repr=False)

    @classmethod
    def of_dialer(cls, key: bytes, transcript: bytes) -> "SessionKeys":
        return cls(hkdf(key, transcript, b"legato dialer"), hkdf(key, transcript, b"legato listener"))

    @classmethod
    def of_listener(cls, key: bytes, transcript: bytes) -> "SessionKeys":
        dialer = cls.of_dialer(key, transcript)
        return cls(dialer.receiving, dialer.sending)


def hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    """The first 32 bytes of HKDF-SHA256."""
    extracted = hmac.digest(salt, key, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


class Stamps:
    """The stamps of one direction, message after message."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._num_messages = 0

    def next(self, message: bytes) -> bytes:
        number = self._num_messages.to_bytes(8, "big")
        self._num_messages += 1
        return hmac.digest(self._key, number + message, "sha256")
