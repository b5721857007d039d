"""Messages: what is sent arrives, and nothing else does."""

import contextlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.errors import CorruptionError, DeadlineError, InputError, LegatoError, MismatchError, ProtocolError
from legato.transports.declaration import Declaration, Operation
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.session_keys import Stamps

DECLARATION = Declaration(name="é", shape=(2, 3), dtype="float16", operation=Operation.BROADCAST, root=1)
MESSAGES: list[m.Message] = [
    m.Hello(None, "::1", 4000, (("version", "1"),)),
    m.Declare((DECLARATION, DECLARATION)),
    m.Define((m.Definition(3, DECLARATION),)),
    m.Welcome(1, "job", (("10.0.0.1", 1), ("10.0.0.2", 2)), (0, 0), ("1a2b3", "1a2b4")),
    m.Refused("w", m.ErrorText("MismatchError", "no", 1, "w", None)),
    m.Propose("{}", 3, everyone=True),
    m.WindowReport(20, "AAAA"),
    m.WindowReported(1, 20, "AAAA"),
    m.Leave((("t", 3),)),
]


KEY = b"k" * 32


def stamped(messages: list[m.Message]) -> list[bytes]:
    """As they travel."""
    stamps = Stamps(KEY)
    return [data + stamps.next(data) for data in map(m.encode, messages)]


@given(cuts=st.lists(st.integers(0, 1200), max_size=8))
def test_messages_survive_any_cutting_of_the_stream(cuts: list[int]) -> None:
    stream = b"".join(stamped(MESSAGES))
    inbox = m.Inbox(KEY)
    received: list[m.Message] = []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for begin, end in pairwise(edges):
        received += inbox.feed(stream[begin:end])
    assert received == MESSAGES


def changed(message: bytes, position: int) -> bytes:
    return message[:position] + bytes([message[position] ^ 1]) + message[position + 1 :]


FIRST, SECOND, THIRD = stamped(MESSAGES[:3])


@pytest.mark.parametrize(
    "stream",
    [
        [changed(FIRST, 20)],
        [changed(FIRST, len(FIRST) - 1)],
        [changed(FIRST, 3) + SECOND],
        [FIRST, FIRST],
        [SECOND],
        [FIRST, THIRD],
        [m.encode(MESSAGES[0]) + Stamps(b"x" * 32).next(m.encode(MESSAGES[0]))],
        [m.encode(MESSAGES[0]) + bytes(32)],
    ],
    ids=["a bit", "a stamp", "a length", "repeated", "begun later", "left out", "another key", "no stamp"],
)
def test_whoever_is_in_between_changes_nothing_unnoticed(stream: list[bytes]) -> None:
    inbox = m.Inbox(KEY)
    received = [message for data in stream[:-1] for message in inbox.feed(data)]
    assert received == MESSAGES[: len(received)]
    with pytest.raises(CorruptionError, match="a control message was changed, repeated, left out or moved"):
        inbox.feed(stream[-1])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"3",
        b'{"kind": "Nothing"}',
        b'{"kind": "Leave", "more": 1}',
        b'{"kind": "Applied"}',
        b'{"kind": "Applied", "round": "1"}',
        b'{"kind": "Applied", "round": true}',
        b'{"kind": "Defined", "ids": {"0": 1}}',
        b'{"kind": "Declare", "tensors": [{"name": "w"}]}',
        b'{"kind": "Welcome", "member": 0, "job": "j", "addresses": [["h"]]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a message of legato"):
        m.decode(body)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_wait_for_more(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert m.Inbox(KEY).feed(data) == []


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="exceeds"):
        m.Inbox(KEY).feed(struct.pack("!I", m.MAX_MESSAGE_BYTES + 1))
    with pytest.raises(ProtocolError, match="exceeds"):
        m.encode(m.Propose("x" * m.MAX_MESSAGE_BYTES, 0, everyone=False))


@pytest.mark.parametrize(
    "error",
    [
        MismatchError("they differ", rank=1, tensor="w", step=3),
        DeadlineError("too late", rank=2),
        InputError("wrong"),
    ],
)
def test_errors_keep_their_type_and_place(error: LegatoError) -> None:
    copy = m.ErrorText.of(error).error()
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("kind", ["Nothing", "JSONDecodeError", "__name__"])
def test_only_our_errors_are_built(kind: str) -> None:
    assert type(m.ErrorText(kind, "text").error()) is LegatoError
