"""The conductor on real sockets: who is missing is said, bad peers disturb nobody, nothing is left behind."""

import contextlib
import itertools
import logging
import select
import socket
import struct
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import DeadlineError, InputError, JobError, LegatoError, SecurityError
from legato.testing.native_job import job_configs, run_job
from legato.testing.ranks import start_ranks
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous import conductor as conductor_module
from legato.transports.rendezvous import messages as m
from legato.transports.rendezvous.agreement import Agreement, Outgoing
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.control_channel import call
from legato.transports.rendezvous.join import JoinConfig
from legato.transports.rendezvous.session_keys import Stamps
from tests.engine.mesh import eventually

PAIR = Deployment(num_workers=2)


def error_of_joining(config: NativeConfig) -> LegatoError:
    with pytest.raises(LegatoError) as caught, NativeGroup(config):
        pass
    return caught.value


class ControlChannel:
    """A member as bare as can be: joined, but it says what the test wants."""

    def __init__(self, config: NativeConfig) -> None:
        member = config.member
        deadline_s = time.monotonic() + 5.0
        joined, _ = call("127.0.0.1", member.conductor_port, member.join, deadline_s)
        self._socket = joined.socket
        self._stamps = Stamps(joined.keys.sending)
        self._inbox = m.Inbox(joined.keys.receiving)
        self._socket.settimeout(5.0)

    def __enter__(self) -> "ControlChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def will_reset(self) -> None:
        """Have the other side find a reset, not an end, when this one closes."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *messages: m.Message) -> None:
        self.send_raw(*map(m.encode, messages))

    def send_raw(self, *messages: bytes) -> None:
        """With their stamps, at once."""
        self._socket.sendall(b"".join(data + self._stamps.next(data) for data in messages))

    def receive(self) -> list[m.Message]:
        return self._inbox.feed(self._socket.recv(1 << 16))

    def is_dropped(self) -> bool:
        return self._socket.recv(1 << 16) == b""


def test_it_says_who_is_missing_and_gives_up_on_everybody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conductor's clock stands until two have joined, however long they take."""
    caplog.set_level(logging.INFO)
    clock_s = 0.0
    monkeypatch.setattr(conductor_module, "time", SimpleNamespace(monotonic=lambda: clock_s))
    configs = job_configs(Deployment(num_workers=4), join_timeout_s=10.0, report_s=0.01)
    futures = start_ranks(2, lambda rank: error_of_joining(configs[rank]))
    eventually(lambda: caplog.text.count(" joined from ") == 2, "two ranks have joined")
    clock_s = 4.0
    waiting = f"2/4 workers joined, missing 2, 3 (waiting at 127.0.0.1:{configs[0].member.conductor_port}, interface lo"
    eventually(lambda: f"{waiting}, 6 s left)" in caplog.text, "it says who is missing")
    clock_s = 10.0
    for future in futures:
        error = future.result(10.0)
        assert isinstance(error, DeadlineError)
        assert str(error) == "2/4 workers joined, missing 2, 3 within 10 s"
        assert error.rank == 2


def test_a_member_without_a_conductor_is_told_where_it_looked() -> None:
    config = job_configs(PAIR, join_timeout_s=0.3)[1]
    error = error_of_joining(config)
    assert isinstance(error, DeadlineError)
    assert str(error).startswith(f"no conductor at 127.0.0.1:{config.member.conductor_port} ([Errno 111]")
    assert error.rank == 0


def test_a_member_with_another_key_is_told_at_once() -> None:
    configs = job_configs(PAIR, join=JoinConfig(key=b"the right secret"), join_timeout_s=20.0)
    wrong = replace(configs[1], member=replace(configs[1].member, join=JoinConfig(key=b"the wrong secret")))
    futures = start_ranks(
        2, lambda rank: run_job([configs[0]], lambda _: None) if rank == 0 else error_of_joining(wrong)
    )
    error = futures[1].result(10.0)
    assert isinstance(error, SecurityError)
    # The right one still gets in.
    run_again = start_ranks(1, lambda _: run_job([configs[1]], lambda _: None))
    run_again[0].result(10.0)
    futures[0].result(10.0)


def test_two_members_with_one_rank() -> None:
    """One of them is told, and which one is a matter of who came first."""
    config = job_configs(PAIR)[0]
    conductor = Conductor(config.member, config.common())
    try:
        with ControlChannel(config) as one, ControlChannel(config) as other:
            for line in (one, other):
                line.send(m.Hello(1, "127.0.0.1", 1, config.common()))
            told, _, _ = select.select([one, other], [], [], 5.0)
            (answer,) = told[0].receive()
        assert isinstance(answer, m.Fatal)
        assert "rank 1 has joined already" in answer.error.text
    finally:
        conductor.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!I", 1 << 31),
        struct.pack("!I", 4) + b"junk",
        m.encode(m.Leave()),
        m.encode(m.Begin()),
    ],
    ids=["oversized", "junk", "no hello", "not its line"],
)
def test_an_authenticated_peer_that_talks_nonsense_is_dropped(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    config = job_configs(PAIR)[0]
    conductor = Conductor(config.member, config.common())
    try:
        with ControlChannel(config) as line:
            line.send_raw(data)
            assert line.is_dropped()
        assert len([record for record in caplog.records if record.message.startswith("dropped ")]) == 1
    finally:
        conductor.close()


def test_a_peer_that_joins_and_says_nothing_is_dropped() -> None:
    join = JoinConfig(handshake_s=0.2)
    config = job_configs(PAIR, join=join)[0]
    conductor = Conductor(config.member)
    try:
        with ControlChannel(config) as line:
            assert line.is_dropped()
    finally:
        conductor.close()


def test_peers_that_join_and_reset_their_connection_do_not_disturb_a_job(caplog: pytest.LogCaptureFixture) -> None:
    """The conductor may find out before it has looked at the connection at all."""
    configs = job_configs(PAIR)

    def bother() -> None:
        for _ in range(200):
            with ControlChannel(configs[0]) as line:
                line.will_reset()

    def body(group: NativeGroup) -> list[float]:
        if group.rank == 0:
            bother()
        group.declare([Declaration(name="after", shape=(1,), dtype="float32")])
        return list(group.push_pull("after", np.ones(1, np.float32), step=0))

    assert run_job(configs, body) == [[2.0], [2.0]]
    lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 200
    assert all(line.startswith("dropped ") for line in lines)


def test_a_peer_whose_first_hello_is_refused_has_no_second(caplog: pytest.LogCaptureFixture) -> None:
    """What it sent along with the first is not heard: it would be a member without a connection."""
    caplog.set_level(logging.INFO)
    config = job_configs(PAIR)[0]
    conductor = Conductor(config.member, config.common())
    try:
        with ControlChannel(config) as line:
            hellos = [m.Hello(rank, "127.0.0.1", 1, config.common()) for rank in (7, 1)]
            line.send(*hellos)
            (answer,) = line.receive()
            assert isinstance(answer, m.Fatal)
            assert line.is_dropped()
        assert "rank 1 joined" not in caplog.text
    finally:
        conductor.close()


def test_a_defect_of_the_conductor_ends_the_job_for_everybody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    received = Agreement.received

    def fail(self: Agreement, member: int, message: m.Message, now_s: float) -> list[Outgoing]:
        if isinstance(message, m.WindowReport):
            raise ZeroDivisionError("on purpose")
        return received(self, member, message, now_s)

    monkeypatch.setattr(Agreement, "received", fail)

    def add_for_ever(group: NativeGroup) -> None:
        for step in itertools.count(1):
            group.push_pull("t", np.ones(1), step=step)

    def body(group: NativeGroup) -> str:
        group.push_pull("t", np.ones(1), step=0)
        if group.rank == 1:
            group.session.member.report(0, "measured")
        with pytest.raises(JobError) as caught:
            add_for_ever(group)
        assert caught.value.rank == 0
        return str(caught.value)

    errors = run_job(job_configs(PAIR), body)
    # One of them may see the other one, rank 0, go before it hears why.
    assert any("a defect of legato ended the conductor (ZeroDivisionError('on purpose'))" in error for error in errors)
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"]


def test_strangers_do_not_disturb_a_job(caplog: pytest.LogCaptureFixture) -> None:
    """A port scan, an HTTP request, random and truncated bytes before, while and after members join."""
    caplog.set_level(logging.WARNING)
    configs = job_configs(PAIR)
    port = configs[0].member.conductor_port

    def bother() -> None:
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)), b"LEGATO\x00\x01\x00"):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass

    def body(group: NativeGroup) -> None:
        for step in range(20):
            if group.rank == 0:
                bother()
            array = np.full(10_000, group.rank + 1.0)
            assert (group.push_pull("t", array, step=step) == 3.0).all()

    run_job(configs, body)
    assert 1 <= len(caplog.records) < 20, "one line for each of the first, then their number"


def test_idle_connections_do_not_delay_a_join(caplog: pytest.LogCaptureFixture) -> None:
    """More of them than a listener keeps, there before the members are; nobody waits for one of them to time out."""
    configs = job_configs(PAIR, join=JoinConfig(handshake_s=60.0))
    address = ("127.0.0.1", configs[0].member.conductor_port)
    futures = start_ranks(1, lambda _: run_job(configs[:1], lambda group: group.size))
    with contextlib.ExitStack() as crowd:

        def is_listening() -> bool:
            with contextlib.suppress(ConnectionRefusedError):
                crowd.enter_context(socket.create_connection(address))
                return True
            return False

        eventually(is_listening, "the conductor listens")
        for _ in range(600):
            crowd.enter_context(socket.create_connection(address))
        assert run_job(configs[1:], lambda group: group.size) == [2]
        assert futures[0].result(10.0) == [2]
    assert len(caplog.records) < 20


@pytest.mark.parametrize(
    "member",
    [
        {"conductor_host": "::1"},
        {"conductor_host": "localhost"},
        {"host": "127.0.0.2"},
        {"host": "0.0.0.0", "join": JoinConfig(key=b"a secret of many bytes")},
        {"host": "0.0.0.0", "join": JoinConfig(insecure=True)},
    ],
    ids=["IPv6", "a name", "another address", "every interface", "insecure"],
)
def test_where_members_can_listen(member: dict[str, object]) -> None:
    assert run_job(job_configs(PAIR, **member), lambda group: group.push_pull("t", np.ones(1)).tolist()) == [[2.0]] * 2


def test_a_job_beyond_loopback_needs_a_key() -> None:
    configs = job_configs(PAIR, conductor_host="0.0.0.0")
    assert isinstance(error_of_joining(configs[0]), SecurityError)


def test_wrong_configurations_are_refused() -> None:
    member = job_configs(PAIR)[0].member
    for name, value in {
        "rank": 2,
        "num_connections": 0,
        "conductor_port": 70000,
        "timeout_s": -1.0,
        "report_s": 0,
    }.items():
        with pytest.raises(InputError, match=f"{name}={value} must be"):
            replace(member, **{name: value})  # type: ignore[arg-type]
