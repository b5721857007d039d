"""An attacker between two members, a TCP proxy through which all their bytes pass, the join included."""

import contextlib
import itertools
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from legato._native import crc32c
from legato.core.shards import Deployment
from legato.errors import CorruptionError, InputError, JobError, MismatchError, PeerLostError
from legato.testing.native_job import job_configs, run_job
from legato.testing.ranks import run_ranks
from legato.transports.native.group import NativeGroup
from legato.transports.native.player import EngineConfig
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous import control_channel, join, mesh
from legato.transports.rendezvous.join import JoinConfig, Joined, Who
from legato.transports.rendezvous.messages import Welcome
from tests.engine.sealed import TAG_BYTES
from tests.engine.wire import HEADER_BYTES, PUSH, SUM, decode

PROTECTED = ["authenticated", "encrypted"]
SECRET = b"a secret of many bytes"
VALUE = (np.arange(30_000) % 9973).astype(np.float32)
"""No two stretches of it are the same."""
PAIR = Deployment(num_workers=2)


class Attacker(Protocol):
    """What the dialer sends passes through here, once it has joined."""

    def pass_on(self, data: bytes) -> bytes:
        """What goes on in place of `data`; ConnectionError to cut the stream there."""


class Listening:
    """Changes nothing, and keeps all it sees."""

    def __init__(self) -> None:
        self.seen = bytearray()

    def pass_on(self, data: bytes) -> bytes:
        self.seen += data
        return data


class Frames:
    """Cuts the stream into frames, where their headers can be read, and attacks a few of those that carry tensors."""

    def __init__(self, wire: str, attack: Callable[[list[bytes]], bytes], num_frames: int, skip: int) -> None:
        self._tag_bytes = 0 if wire == "plain" else TAG_BYTES
        self._attack = attack
        self._num_frames = num_frames
        self._skip = skip
        self._bytes = b""
        self._held: list[bytes] = []

    def pass_on(self, data: bytes) -> bytes:
        self._bytes += data
        passed = b""
        while (frame := self._next()) is not None:
            is_data = decode(frame[:HEADER_BYTES]).kind in (PUSH, SUM)
            if is_data and self._skip > 0:
                self._skip -= 1
            elif is_data and self._num_frames > 0:
                self._num_frames -= 1
                self._held.append(frame)
                if self._num_frames == 0:
                    passed += self._attack(self._held)
                continue
            passed += frame
        return passed

    def _next(self) -> bytes | None:
        if len(self._bytes) < HEADER_BYTES:
            return None
        payload_bytes = decode(self._bytes[:HEADER_BYTES]).payload_bytes
        end = HEADER_BYTES + self._tag_bytes + (payload_bytes + self._tag_bytes if payload_bytes else 0)
        if len(self._bytes) < end:
            return None
        frame, self._bytes = self._bytes[:end], self._bytes[end:]
        return frame


class Stretches:
    """Attacks two stretches of bytes, one behind the other, where nothing can be read of frames."""

    def __init__(self, attack: Callable[[bytes, bytes], bytes], begin: int, length: int) -> None:
        self._attack = attack
        self._begin = begin
        self._middle = begin + length
        self._end = begin + 2 * length
        self._bytes = b""
        self._is_over = False

    def pass_on(self, data: bytes) -> bytes:
        if self._is_over:
            return data
        self._bytes += data
        if len(self._bytes) < self._end:
            return b""  # held back until all of it is here
        self._is_over = True
        held = self._bytes
        attack = self._attack(held[self._begin : self._middle], held[self._middle : self._end])
        return held[: self._begin] + attack + held[self._end :]


class Cut:
    """Ends the stream after so many bytes."""

    def __init__(self, num_bytes: int) -> None:
        self._num_left = num_bytes

    def pass_on(self, data: bytes) -> bytes:
        if self._num_left == 0:
            raise ConnectionError
        passed = data[: self._num_left]
        self._num_left -= len(passed)
        return passed


class Proxy:
    """Stands between a dialer and the listener at an address."""

    def __init__(self, host: str, port: int, attacker: Attacker) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._there = (host, port)
        self._attacker = attacker
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20.0)
        for end in (self._server, *self._ends):
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._server.accept()
            far = socket.create_connection(self._there)
            self._ends += [near, far]
            for pump in (lambda: self._pump(near, far, self._attacker), lambda: self._pump(far, near, None)):
                self._threads.append(threading.Thread(target=pump))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, attacker: Attacker | None) -> None:
        with contextlib.suppress(OSError):
            if attacker is not None:
                self._pass_join(source, target)
            while data := source.recv(1 << 16):
                target.sendall(data if attacker is None else attacker.pass_on(data))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass_join(self, source: socket.socket, target: socket.socket) -> None:
        """The greeting and the proof as they are: nobody could change them."""
        prefix = source.recv(10, socket.MSG_WAITALL)
        (who_bytes,) = struct.unpack("!H", prefix[8:])
        target.sendall(prefix + source.recv(who_bytes + 32, socket.MSG_WAITALL))
        target.sendall(source.recv(32, socket.MSG_WAITALL))


@contextlib.contextmanager
def attacked(monkeypatch: pytest.MonkeyPatch, where: object, attacker: Attacker) -> Iterator[None]:
    """Rank 1 reaches rank 0 through the proxy: its engine (`mesh`), or its conductor (`control_channel`)."""
    proxies: list[Proxy] = []

    def dial(host: str, port: int, who: Who, config: JoinConfig, deadline_s: float) -> Joined:
        if threading.current_thread().name == "rank-1":
            proxies.append(Proxy(host, port, attacker))
            host, port = "127.0.0.1", proxies[-1].port
        return join.dial(host, port, who, config, deadline_s)

    with monkeypatch.context() as patch:
        patch.setattr(where, "dial", dial)
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.close()
    assert len(proxies) == 1


def configs_of(wire: str, deployment: Deployment = PAIR) -> list[NativeConfig]:
    member = {"shared_memory": False, "join": JoinConfig(key=SECRET)}
    engine = EngineConfig(heartbeat_s=1.0, wire=wire)
    return [replace(config, engine=engine) for config in job_configs(deployment, **member)]


def add_for_ever(group: NativeGroup) -> None:
    for step in itertools.count():
        assert (group.push_pull("w", VALUE + group.rank, step=step) == 2 * VALUE + 1).all(), "a wrong sum"


def errors_of(monkeypatch: pytest.MonkeyPatch, wire: str, attacker: Attacker) -> list[JobError]:
    def body(group: NativeGroup) -> JobError:
        with pytest.raises(JobError) as caught:
            add_for_ever(group)
        return caught.value

    with attacked(monkeypatch, mesh, attacker):
        return run_job(configs_of(wire), body)


def with_another_number(frames: list[bytes]) -> bytes:
    """The first payload's first item is another one, and both checksums are right again, where they can be."""
    frame = bytearray(frames[0])
    tag_bytes = 0 if len(frame) == HEADER_BYTES + decode(bytes(frame[:HEADER_BYTES])).payload_bytes else TAG_BYTES
    begin = HEADER_BYTES + tag_bytes
    frame[begin : begin + 4] = struct.pack("<f", 1000.0)
    if not tag_bytes:
        frame[60:64] = struct.pack("<I", crc32c(bytes(frame[begin:])))
        frame[:4] = struct.pack("<I", 0x4F54474C ^ crc32c(bytes(frame[4:HEADER_BYTES])))
    return bytes(frame) + b"".join(frames[1:])


def test_checksums_do_not_stop_an_attacker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others here are compared with: on a plain wire a changed number with the right checksum is summed."""
    configs = configs_of("plain")

    def body(group: NativeGroup) -> bool:
        return bool((group.push_pull("w", VALUE + group.rank, step=0) == 2 * VALUE + 1).all())

    with attacked(monkeypatch, mesh, Frames("plain", with_another_number, 1, 0)):
        assert not all(run_job(configs, body)), "the attack has no effect"


FRAME_ATTACKS: dict[str, tuple[Callable[[list[bytes]], bytes], int]] = {
    "changed": (with_another_number, 1),
    "left out": (lambda _: b"", 1),
    "repeated": (lambda frames: frames[0] * 2, 1),
    "swapped": (lambda frames: frames[1] + frames[0], 2),
}


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("attack", FRAME_ATTACKS)
def test_an_attacker_who_reads_frames_changes_none(monkeypatch: pytest.MonkeyPatch, attack: str, skip: int) -> None:
    change, num_frames = FRAME_ATTACKS[attack]
    for error in errors_of(monkeypatch, "authenticated", Frames("authenticated", change, num_frames, skip)):
        assert isinstance(error, CorruptionError), error
        assert error.rank == 1
        assert "bytes changed on the link between member 0 and member 1: a " in str(error)
        assert " with a wrong tag reached member 0" in str(error)


STRETCH_ATTACKS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "changed": lambda one, other: bytes([one[0] ^ 1]) + one[1:] + other,
    "left out": lambda _, other: other,
    "repeated": lambda one, other: one + one + other,
    "swapped": lambda one, other: other + one,
}


@pytest.mark.parametrize("wire", PROTECTED)
@pytest.mark.parametrize("attack", STRETCH_ATTACKS)
def test_an_attacker_who_knows_only_bytes_changes_none(monkeypatch: pytest.MonkeyPatch, attack: str, wire: str) -> None:
    for begin, length in ((0, 80), (5001, 4000)):
        attacker = Stretches(STRETCH_ATTACKS[attack], begin, length)
        for error in errors_of(monkeypatch, wire, attacker):
            assert isinstance(error, CorruptionError), error
            assert "bytes changed on the link between member 0 and member 1: a " in str(error)


@pytest.mark.parametrize("wire", PROTECTED)
def test_an_attacker_who_ends_the_stream_is_noticed(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    for num_bytes in (80, 20_000):
        for error in errors_of(monkeypatch, wire, Cut(num_bytes)):
            assert isinstance(error, PeerLostError), error


@pytest.mark.parametrize("wire", ["plain", *PROTECTED])
def test_who_only_listens_reads_no_more_than_is_promised(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    words = b"gradients that nobody else shall see"
    value = np.frombuffer(words * 1000, np.uint8).copy()
    listening = Listening()

    def body(group: NativeGroup) -> bool:
        return bool((group.broadcast("w", value if group.rank else np.zeros_like(value), root=1) == value).all())

    with attacked(monkeypatch, mesh, listening):
        assert run_job(configs_of(wire), body) == [True, True]
    assert len(listening.seen) > value.nbytes / 4
    assert (words in listening.seen) == (wire != "encrypted")


@pytest.mark.parametrize("attack", STRETCH_ATTACKS)
def test_nor_is_the_control_channel_changed(monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    """It is authenticated whatever protects the frames: here, while rank 1 says who it is."""
    configs = [replace(config, member=replace(config.member, join_timeout_s=1.0)) for config in configs_of("plain")]

    def body(rank: int) -> str:
        with pytest.raises(JobError) as caught, NativeGroup(configs[rank]):
            pass
        return str(caught.value)

    with attacked(monkeypatch, control_channel, Stretches(STRETCH_ATTACKS[attack], 60, 20)):
        errors = run_ranks(2, body)
    assert "missing 1" in errors[0], "what it said has not been believed"


def test_nobody_is_led_to_another_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 dials rank 0, and the attacker connects it to rank 1, who holds the same key."""
    addresses: dict[int, tuple[str, int]] = {}
    dial_once = mesh.Mesh._dial_once

    def misled(self: mesh.Mesh, place: Welcome, peer: int, index: int, deadline_s: float) -> mesh.Way:
        addresses.update(enumerate(place.addresses))
        return dial_once(self, place, peer, index, deadline_s)

    def dial(host: str, port: int, who: Who, config: JoinConfig, deadline_s: float) -> Joined:
        if (who.member, who.listener) == (2, 0):
            host, port = addresses[1]
        return join.dial(host, port, who, config, deadline_s)

    monkeypatch.setattr(mesh.Mesh, "_dial_once", misled)
    monkeypatch.setattr(mesh, "dial", dial)
    configs = configs_of("authenticated", Deployment(num_workers=3))

    def body(rank: int) -> str:
        with pytest.raises(JobError) as caught, NativeGroup(configs[rank]):
            pass
        return str(caught.value)

    begin_s = time.monotonic()
    for said in run_ranks(3, body):
        assert "member 2 cannot reach member 0" in said
        assert "refused: it dials member 0, and this is member 1" in said
    assert time.monotonic() - begin_s < configs[0].member.join_timeout_s


def test_members_that_protect_differently_are_told() -> None:
    configs = [*configs_of("plain")[:1], configs_of("encrypted")[1]]
    port = configs[0].member.conductor_port
    configs[1] = replace(configs[1], member=replace(configs[1].member, conductor_port=port))

    def body(rank: int) -> str:
        with pytest.raises(MismatchError) as caught, NativeGroup(configs[rank]):
            pass
        return str(caught.value)

    expected = "LEGATO_WIRE: rank 0 says plain, rank 1 says encrypted; all members must agree on it"
    assert run_ranks(2, body) == [expected, expected]


@pytest.mark.parametrize("wire", PROTECTED)
def test_protection_needs_a_key(wire: str) -> None:
    config = configs_of(wire)[0]
    with pytest.raises(InputError, match=f"LEGATO_WIRE is '{wire}', which needs a key: set LEGATO_KEY"):
        replace(config, member=replace(config.member, join=JoinConfig(insecure=True)))
    replace(config, member=replace(config.member, join=JoinConfig()))  # the conductor makes one, on loopback


def test_an_unknown_wire_is_refused() -> None:
    with pytest.raises(InputError, match="wire='tls' must be one of plain, authenticated, encrypted"):
        EngineConfig(wire="tls")


@pytest.mark.parametrize("wire", PROTECTED)
def test_a_job_on_loopback_is_protected_by_the_key_that_it_makes(wire: str) -> None:
    configs = [replace(config, engine=EngineConfig(wire=wire)) for config in job_configs(PAIR, shared_memory=False)]
    assert run_job(configs, lambda group: group.push_pull("t", np.ones(1)).tolist()) == [[2.0]] * 2


WITHOUT_LIBCRYPTO = """
from legato.errors import InputError
from legato.transports.native.player import EngineConfig
EngineConfig()
try:
    EngineConfig(wire="encrypted")
except InputError as error:
    print(error)
"""


def test_without_a_library_it_says_so() -> None:
    """On a machine whose libcrypto is an empty file, in a mount namespace of its own."""
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    paths = {line.split(" => ")[1] for line in found.splitlines() if line.strip().startswith("libcrypto.so.")}
    hide = " && ".join(f"mount --bind /dev/null {Path(path).resolve()}" for path in sorted(paths))
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, hide], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody make a mount namespace")
    done = subprocess.run(
        [*inside, f'{hide} && exec "$0" -c "$1"', sys.executable, WITHOUT_LIBCRYPTO],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.stdout == (
        "LEGATO_WIRE is 'encrypted', and there is no libcrypto.so.3 or libcrypto.so.1.1 (OpenSSL) on this machine: "
        "install OpenSSL 3 or 1.1, or set it to plain on every member\n"
    ), done
