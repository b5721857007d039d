"""Keys: a job on loopback has one that only its user can get; another user of the machine stays outside."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import DeadlineError, InputError
from legato.testing.native_job import job_configs, run_job
from legato.testing.ports import free_port
from legato.testing.ranks import start_ranks
from legato.transports.native.group import NativeGroup
from legato.transports.rendezvous.control_channel import call
from legato.transports.rendezvous.join import JoinConfig
from legato.transports.rendezvous.keys import KeyDoor, fetch_key, make_key
from legato.transports.rendezvous.listener import Listener

NOBODY = 65534
PAIR = Deployment(num_workers=2)

INTRUDE = """
import encodings.idna  # looking up a host needs it, and only the first user may be able to read this Python
import os, sys
from dataclasses import replace
from legato.core.shards import Deployment
from legato.errors import LegatoError
from legato.testing.native_job import job_configs
from legato.transports.native.group import NativeGroup
from legato.transports.rendezvous.join import JoinConfig

os.setuid(65534)
config = job_configs(Deployment(num_workers=2), conductor_port=int(sys.argv[1]), join_timeout_s=1.0)[1]
for join in (JoinConfig(), JoinConfig(insecure=True), JoinConfig(key=b"a guess of 16 b.")):
    try:
        NativeGroup(replace(config, member=replace(config.member, join=join))).close(now=True)
        print("joined")
    except LegatoError as error:
        print(type(error).__name__, error)
"""

KNOCK = """
import os, socket, sys

os.setuid(65534)
with socket.socket(socket.AF_UNIX) as door:
    door.settimeout(5.0)
    door.connect("\\0" + sys.argv[1])
    print(door.recv(64))
"""

as_nobody = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def output_of(script: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.splitlines()


@as_nobody
def test_another_user_cannot_join(caplog: pytest.LogCaptureFixture) -> None:
    configs = job_configs(PAIR)

    def add(rank: int) -> list[float]:
        with NativeGroup(configs[rank]) as group:
            return list(group.push_pull("t", np.ones(1)))

    (first,) = start_ranks(1, add)
    asked, empty, guessed = output_of(INTRUDE, configs[0].member.conductor_port)
    assert asked.startswith("DeadlineError no conductor at ")
    assert "(it belongs to user 0, this process to user 65534)" in asked
    assert empty.startswith("SecurityError refused: the keys differ")
    assert guessed.startswith("SecurityError refused: the keys differ")
    assert add(1) == first.result(20.0) == [2.0]
    assert "it belongs to user 65534, this process to user 0" in caplog.text


@as_nobody
def test_another_user_cannot_knock_at_the_door_to_memory(caplog: pytest.LogCaptureFixture) -> None:
    config = JoinConfig(key=make_key())
    listener = Listener(None, 0, config, welcome=lambda _: "", take=lambda connection, _: connection.close())
    try:
        assert output_of(KNOCK, listener.door) == ["b''"]
    finally:
        listener.close()
    assert [record.message for record in caplog.records] == [
        "dropped a process on this host: it belongs to user 65534, this process to user 0"
    ]


@as_nobody
def test_a_key_of_another_user_is_not_taken() -> None:
    """Whoever is at the port first cannot have this user's members join a job of theirs."""
    port = free_port()
    script = (
        "import os, sys; from legato.transports.rendezvous.keys import KeyDoor, make_key; os.setuid(65534);"
        "door = KeyDoor(int(sys.argv[1]), make_key()); print('open', flush=True); sys.stdin.read(); door.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(DeadlineError, match=f"it belongs to user {NOBODY}, this process to user 0"):
            call("127.0.0.1", port, JoinConfig(), time.monotonic() + 0.2)
        with pytest.raises(InputError, match=f"cannot hand out a key for port {port} .*; give a free port, or set LEG"):
            KeyDoor(port, make_key())
        process.communicate()


def test_a_child_of_the_conductors_process_does_not_keep_its_name() -> None:
    """Workers of a `DataLoader` may outlive a job, and the next one begins at the same port."""
    port = free_port()
    door = KeyDoor(port, make_key())
    receiver, sender = os.pipe()
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sender)
        os.write(said, b"!")
        os.read(receiver, 1)  # until the parent has looked
        os._exit(0)
    try:
        os.read(heard, 1)  # the child is past what it does first
        door.close()
        KeyDoor(port, make_key()).close()
    finally:
        os.close(sender)
        os.waitpid(child, 0)
        for end in (receiver, heard, said):
            os.close(end)


def test_every_job_has_a_key_of_its_own() -> None:
    def key(group: NativeGroup) -> bytes:
        return fetch_key(group.session.config.member.conductor_port)

    (one, same), (other, _) = (run_job(job_configs(PAIR), key) for _ in range(2))
    assert len(one) == 32
    assert one == same != other


def test_a_key_is_gone_with_its_job() -> None:
    configs = job_configs(PAIR)
    run_job(configs, NativeGroup.barrier)
    with pytest.raises(ConnectionRefusedError):
        fetch_key(configs[0].member.conductor_port)


def test_a_key_that_is_no_longer_the_conductors_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may end, and the next one begin at its port, between a member's question and its join."""
    keys = [make_key()]

    def fetch(port: int, then: Callable[[int], bytes] = fetch_key) -> bytes:
        return keys.pop() if keys else then(port)

    monkeypatch.setattr("legato.transports.rendezvous.control_channel.fetch_key", fetch)
    assert run_job(job_configs(PAIR), lambda group: list(group.push_pull("t", np.ones(1)))) == [[2.0]] * 2
    assert not keys


def test_a_conductor_that_hangs_up_is_asked_again() -> None:
    port = free_port()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"\0legato-key-{port}")
        mute.listen()
        (hanging_up,) = start_ranks(1, lambda _: mute.accept()[0].close())
        with pytest.raises(ConnectionResetError, match="it did not give its key"):
            fetch_key(port)
        hanging_up.result(5.0)
