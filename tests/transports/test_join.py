"""Joining: who holds the key gets in, everybody else is dropped with one line and disturbs nobody."""

import contextlib
import logging
import os
import queue
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from legato.errors import DeadlineError, InputError, ProtocolError, SecurityError
from legato.testing.ports import free_port
from legato.testing.ranks import start_ranks
from legato.transports.rendezvous.join import MAGIC, JoinConfig, Joined, Who, dial
from legato.transports.rendezvous.listener import MAX_STRANGERS, Listener
from legato.transports.rendezvous.session_keys import SessionKeys, hkdf
from legato.transports.rendezvous.tcp import connect
from tests.engine.mesh import eventually

KEY = JoinConfig(key=b"a secret of 24 bytes....", handshake_s=5.0)
WHO = Who("mesh", "job", 3, 1)


class Door:
    """A listener, and those it let in."""

    def __init__(self, config: JoinConfig, refusal: str = "") -> None:
        self.guests: queue.SimpleQueue[tuple[socket.socket, Who]] = queue.SimpleQueue()
        self.keys: queue.SimpleQueue[SessionKeys] = queue.SimpleQueue()
        self.listener = Listener("127.0.0.1", 0, config, welcome=lambda _: refusal, take=self._take)

    def _take(self, joined: Joined, who: Who) -> None:
        self.keys.put(joined.keys)
        self.guests.put((joined.socket, who))

    def enter(self, config: JoinConfig, who: Who = WHO) -> socket.socket:
        return self.join(config, who).socket

    def join(self, config: JoinConfig, who: Who = WHO) -> Joined:
        return dial("127.0.0.1", self.listener.port, who, config, time.monotonic() + 5.0)

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.listener.port), timeout=5.0)


@contextlib.contextmanager
def door(config: JoinConfig = KEY, refusal: str = "") -> Iterator[Door]:
    opened = Door(config, refusal)
    try:
        yield opened
    finally:
        opened.listener.close()


def is_dropped(stranger: socket.socket) -> bool:
    """Whether the other side hangs up; it may greet first."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_who_holds_the_key_gets_in() -> None:
    with door() as opened, opened.enter(KEY) as mine:
        theirs, who = opened.guests.get(timeout=5.0)
        with theirs:
            assert who == WHO
            mine.sendall(b"hello")
            assert theirs.recv(5) == b"hello"


def congestion_control(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_congestion_control_is_chosen_before_there_is_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bbr is the default, it would turn pacing on at once and for good."""
    at_connect = []
    original = socket.socket.connect

    def look_and_connect(connection: socket.socket, address: tuple[str, int]) -> None:
        at_connect.append(congestion_control(connection))
        original(connection, address)

    monkeypatch.setattr(socket.socket, "connect", look_and_connect)
    with door() as opened, opened.enter(KEY):
        accepted, _ = opened.guests.get(timeout=5.0)
        with accepted:
            assert congestion_control(accepted) == b"reno"
    assert at_connect == [b"reno"]


def test_a_host_is_reached_at_the_address_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with socket.create_server(("127.0.0.1", port)), connect("twofold", port, 5.0) as connection:
        assert connection.getpeername() == ("127.0.0.1", port)
    with pytest.raises(ConnectionRefusedError):
        connect("twofold", port, 5.0)


@pytest.mark.parametrize("config", [JoinConfig(key=b"another of 24 bytes....."), JoinConfig(insecure=True)])
def test_who_does_not_hold_the_key_is_told(config: JoinConfig, caplog: pytest.LogCaptureFixture) -> None:
    with door() as opened:
        with pytest.raises(SecurityError, match="the keys differ: LEGATO_KEY or LEGATO_KEY_FILE must hold the same"):
            opened.enter(config)
        assert opened.guests.empty()
    assert [record.message.split(": ")[1] for record in caplog.records] == ["it does not hold the job's key"]


def test_a_listener_without_the_key_is_found_out() -> None:
    """It answers the challenge with a proof of another key: the dialer does not stay."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        port = impostor.getsockname()[1]

        def pretend() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(MAGIC + bytes(32))
                connection.recv(32)
                connection.sendall(b"Y" + bytes(32))

        (pretending,) = start_ranks(1, lambda _: pretend())
        with pytest.raises(SecurityError, match="does not hold the job's key"):
            dial("127.0.0.1", port, WHO, KEY, time.monotonic() + 5.0)
        pretending.result(5.0)


def test_a_join_that_was_recorded_cannot_be_replayed(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody between the two has every byte that a member sent to prove itself."""
    recorded: list[bytes] = []
    with door() as opened, socket.create_server(("127.0.0.1", 0)) as between:

        def relay() -> None:
            member, _ = between.accept()
            with member, opened.stranger() as ours:
                for _ in range(2):  # the greeting and the proof, each with its answer
                    recorded.append(member.recv(4096))
                    ours.sendall(recorded[-1])
                    member.sendall(ours.recv(4096))

        (relaying,) = start_ranks(1, lambda _: relay())
        dial("127.0.0.1", between.getsockname()[1], WHO, KEY, time.monotonic() + 5.0).close()
        relaying.result(5.0)
        opened.guests.get(timeout=5.0)[0].close()
        with opened.stranger() as replaying:
            for data in recorded:
                replaying.sendall(data)
                answer = replaying.recv(4096)
            assert answer.startswith(b"N")
        assert opened.guests.empty()
    assert "it does not hold the job's key" in caplog.text


def test_every_connection_has_keys_of_its_own_one_for_each_direction() -> None:
    with door() as opened:
        used: list[bytes] = []
        for _ in range(3):
            joined = opened.join(KEY)
            with joined.socket, opened.guests.get(timeout=5.0)[0]:
                theirs = opened.keys.get(timeout=5.0)
            assert (joined.keys.sending, joined.keys.receiving) == (theirs.receiving, theirs.sending)
            used += [joined.keys.sending, joined.keys.receiving]
            assert repr(joined.keys) == "SessionKeys()"
        assert len(set(used)) == len(used) == 6
        assert {len(key) for key in used} == {32}


@pytest.mark.parametrize("change", ["key", "transcript"])
def test_keys_depend_on_the_jobs_key_and_on_all_that_was_said(change: str) -> None:
    given = {"key": b"a secret of 24 bytes....", "transcript": b"who, nonce, nonce"}
    same, changed = (SessionKeys.of_dialer(**given), SessionKeys.of_dialer(**given | {change: b"something else...."}))
    assert same == SessionKeys.of_dialer(**given)
    assert len({same.sending, same.receiving, changed.sending, changed.receiving}) == 4


def test_keys_are_derived_as_rfc_5869_says() -> None:
    """Its first test case, as far as we need it."""
    okm = hkdf(b"\x0b" * 22, bytes(range(0x0D)), bytes(range(0xF0, 0xFA)))
    assert okm.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_a_guest_can_be_refused(caplog: pytest.LogCaptureFixture) -> None:
    with door(refusal="the house is full") as opened:
        with pytest.raises(SecurityError, match="refused: the house is full"):
            opened.enter(KEY)
        assert opened.guests.empty()
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
        bytes(range(256)) * 20,
        MAGIC + b"\xff\xff" + b"x" * 70,
        MAGIC + b"\x00\x02{}" + bytes(32) + bytes(32),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["http", "random", "oversized", "no proof", "tls"],
)
def test_strangers_are_dropped_with_one_line(bytes_sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with door() as opened:
        with opened.stranger() as stranger:
            stranger.sendall(bytes_sent)
            assert is_dropped(stranger)
        with opened.enter(KEY):
            opened.guests.get(timeout=5.0)[0].close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].message.startswith("dropped 127.0.0.1:")


@pytest.mark.parametrize("bytes_sent", [b"", MAGIC, MAGIC + b"\x00\x10abc"], ids=["scan", "magic", "truncated"])
def test_who_hangs_up_is_dropped(bytes_sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with door() as opened:
        with opened.stranger() as stranger:
            stranger.sendall(bytes_sent)
            stranger.shutdown(socket.SHUT_WR)
            assert is_dropped(stranger)  # before the listener closes: of those who are still there then it says nothing
        with opened.enter(KEY):
            opened.guests.get(timeout=5.0)[0].close()
    assert [record.message.split(": ", 1)[1] for record in caplog.records] == ["it went away during the join"]


def test_who_says_nothing_is_dropped_at_the_deadline_and_delays_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with door(replace(KEY, handshake_s=1.0)) as opened, opened.stranger() as silent:
        with opened.enter(KEY):
            opened.guests.get(timeout=5.0)[0].close()
        assert is_dropped(silent)
    assert [record.message.split(": ", 1)[1] for record in caplog.records] == ["it did not finish the join in time"]


def test_a_silent_listener_is_left_at_the_deadline() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DeadlineError, match="did not finish the join in time"),
    ):
        dial("127.0.0.1", silent.getsockname()[1], WHO, KEY, time.monotonic() + 0.2)


def test_another_protocol_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        (answering,) = start_ranks(1, lambda _: answer())
        with pytest.raises(ProtocolError, match="no member of a legato job"):
            dial("127.0.0.1", other.getsockname()[1], WHO, KEY, time.monotonic() + 5.0)
        answering.result(5.0)


@contextlib.contextmanager
def room_for(num_files: int) -> Iterator[None]:
    """A limit on this process's open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_two_thousand_idle_connections_keep_nobody_out(caplog: pytest.LogCaptureFixture) -> None:
    """They cost the listener a bounded number of files, no thread and a few lines; a member gets in at once."""
    num_threads = threading.active_count()
    with room_for(4096), door() as opened, contextlib.ExitStack() as crowd:
        for number in range(2000):
            crowd.enter_context(opened.stranger())
            if number % 500 == 250:
                with opened.enter(KEY):
                    opened.guests.get(timeout=5.0)[0].close()
        with opened.enter(KEY):
            opened.guests.get(timeout=5.0)[0].close()
        assert len(opened.listener._strangers) <= MAX_STRANGERS
        assert threading.active_count() <= num_threads + 1 + 5  # the listener's, and those of guests just let in
    assert len(caplog.records) < 100
    assert "256 others came after it, and it has not joined yet" in caplog.text
    assert re.search(r"dropped 1\d\d\d more connections", caplog.text)


def test_who_sends_a_byte_now_and_then_is_dropped_at_the_deadline_all_the_same() -> None:
    """A slow greeting: every byte is right, and none of them buys more time."""
    greeting = MAGIC + b"\x04\x00" + b" " * 2000
    with door(replace(KEY, handshake_s=0.5)) as opened:
        slow = [opened.stranger() for _ in range(20)]
        _drip(slow, greeting[:3])
        with opened.enter(KEY):
            opened.guests.get(timeout=5.0)[0].close()
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            _drip(slow, greeting[3:])
        for stranger in slow:
            with stranger:
                assert is_dropped(stranger)


def _drip(slow: list[socket.socket], data: bytes) -> None:
    for number in range(len(data)):
        for stranger in slow:
            stranger.sendall(data[number : number + 1])
        threading.Event().wait(0.01)


def test_without_files_left_a_stranger_makes_room() -> None:
    """Nobody who has proven nothing keeps a member out, even where there is no descriptor for it."""
    with door(replace(KEY, handshake_s=60.0)) as opened, opened.stranger() as idle, socket.socket() as member:
        eventually(lambda: len(opened.listener._strangers) == 1, "the stranger is on the doorstep")
        member.settimeout(5.0)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        with room_for(lowest_free):
            member.connect(("127.0.0.1", opened.listener.port))
            assert is_dropped(idle)


def test_a_listener_outlives_threads_and_connections_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with door() as opened:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _cannot_start)
            with pytest.raises(ConnectionError):
                opened.enter(KEY)
        with opened.enter(KEY):
            opened.guests.get(timeout=5.0)[0].close()
    assert "can't start new thread" in caplog.text


def _cannot_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_closing_drops_those_on_the_doorstep() -> None:
    with door() as opened:
        silent = opened.stranger()
        opened.listener.close()
        with silent:
            assert is_dropped(silent)
        with pytest.raises(ConnectionRefusedError):
            opened.stranger()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.2"])
def test_listening_beyond_loopback_needs_a_key(host: str) -> None:
    with pytest.raises(SecurityError, match="there is no key: set LEGATO_KEY or LEGATO_KEY_FILE"):
        JoinConfig().check_host(host)
    KEY.check_host(host)
    JoinConfig(insecure=True).check_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    JoinConfig().check_host(host)


def test_an_unkeyed_listener_is_not_even_opened_beyond_loopback() -> None:
    with pytest.raises(SecurityError, match="there is no key"):
        Listener("0.0.0.0", 0, JoinConfig(), welcome=lambda _: "", take=lambda *_: None)


def test_a_port_that_is_taken_is_named() -> None:
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(InputError, match=f"cannot listen at 127.0.0.1:{port}.*give a free port"),
    ):
        Listener("127.0.0.1", port, KEY, welcome=lambda _: "", take=lambda *_: None)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(KEY)


def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(InputError, match="key holds 15 bytes; accepted are 16 or more"):
        JoinConfig(key=b"x" * 15)
    with pytest.raises(InputError, match="handshake_s=0 must be more than 0"):
        JoinConfig(handshake_s=0)
