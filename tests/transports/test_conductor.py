"""The conductor on real sockets: who is missing is said, bad peers disturb nobody, nothing is left behind."""

import contextlib
import logging
import select
import socket
import struct
import time
from dataclasses import replace

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import DeadlineError, InputError, LegatoError, SecurityError
from legato.testing.native_job import job_configs, run_job
from legato.testing.ranks import start_ranks
from legato.transports import messages as m
from legato.transports.conductor import Conductor, ConductorConfig
from legato.transports.group import NativeGroup
from legato.transports.join import JoinConfig, Who, dial
from legato.transports.session import NativeConfig

PAIR = Deployment(num_workers=2)


def error_of_joining(config: NativeConfig) -> LegatoError:
    with pytest.raises(LegatoError) as caught, NativeGroup(config):
        pass
    return caught.value


class Line:
    """A member as bare as can be: joined, but it says what the test wants."""

    def __init__(self, config: NativeConfig) -> None:
        member = config.member
        deadline_s = time.monotonic() + 5.0
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                self._socket = dial("127.0.0.1", member.conductor_port, Who("conductor"), member.join, deadline_s)
                break
        self._socket.settimeout(5.0)

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: m.FromMember) -> None:
        self._socket.sendall(m.encode(message))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> list[m.Message]:
        return m.Inbox().feed(self._socket.recv(1 << 16))

    def is_dropped(self) -> bool:
        return self._socket.recv(1 << 16) == b""


def test_it_says_who_is_missing_and_gives_up_on_everybody(caplog: pytest.LogCaptureFixture) -> None:
    configs = job_configs(Deployment(num_workers=4), join_timeout_s=0.6)
    present = [replace(config, report_s=0.2) for config in configs[:2]]
    errors = [future.result(10.0) for future in start_ranks(2, lambda rank: error_of_joining(present[rank]))]
    for error in errors:
        assert isinstance(error, DeadlineError)
        assert str(error) == "2/4 workers joined, missing 2, 3 within 0.6 s"
        assert error.rank == 2
    port = configs[0].member.conductor_port
    lines = [record.message for record in caplog.records if "joined" in record.message]
    assert lines[0] == f"2/4 workers joined, missing 2, 3 (waiting at 127.0.0.1:{port}, interface lo, 0 s left)"


def test_a_member_without_a_conductor_is_told_where_it_looked() -> None:
    config = job_configs(PAIR, join_timeout_s=0.3)[1]
    error = error_of_joining(config)
    assert isinstance(error, DeadlineError)
    assert str(error).startswith(f"no conductor at 127.0.0.1:{config.member.conductor_port} ([Errno 111]")
    assert error.rank == 0


def test_a_member_with_another_key_is_told_at_once() -> None:
    configs = job_configs(PAIR, join=JoinConfig(key=b"right"), join_timeout_s=20.0)
    wrong = replace(configs[1], member=replace(configs[1].member, join=JoinConfig(key=b"wrong")))
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
    conductor = Conductor(ConductorConfig(port=config.member.conductor_port, deployment=PAIR, common=config.common()))
    try:
        with Line(config) as one, Line(config) as other:
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
    conductor = Conductor(ConductorConfig(port=config.member.conductor_port, deployment=PAIR, common=config.common()))
    try:
        with Line(config) as line:
            line.send_raw(data)
            assert line.is_dropped()
        assert len([record for record in caplog.records if record.message.startswith("dropped ")]) == 1
    finally:
        conductor.close()


def test_a_peer_that_joins_and_says_nothing_is_dropped() -> None:
    join = JoinConfig(handshake_s=0.2)
    config = job_configs(PAIR, join=join)[0]
    conductor = Conductor(ConductorConfig(port=config.member.conductor_port, deployment=PAIR, join=join))
    try:
        with Line(config) as line:
            assert line.is_dropped()
    finally:
        conductor.close()


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
    assert len(caplog.records) == 20 * 4


@pytest.mark.parametrize(
    "member",
    [
        {"conductor_host": "::1"},
        {"conductor_host": "localhost"},
        {"host": "127.0.0.2"},
        {"host": "0.0.0.0", "join": JoinConfig(key=b"secret")},
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
    with pytest.raises(InputError, match="report_s=0 must be more than 0"):
        ConductorConfig(deployment=PAIR, report_s=0)
    with pytest.raises(InputError, match="port=70000 must be 0 to 65535"):
        ConductorConfig(deployment=PAIR, port=70000)
    member = job_configs(PAIR)[0].member
    for name, value in {"rank": 2, "num_connections": 0, "conductor_port": 0, "timeout_s": -1.0}.items():
        with pytest.raises(InputError, match=f"{name}={value} must be"):
            replace(member, **{name: value})  # type: ignore[arg-type]
