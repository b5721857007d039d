"""Links that change, cut or end what travels: every rank names the link, in the same words."""

import contextlib
import itertools
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import CorruptionError, JobError, PeerLostError
from legato.testing.native_job import job_configs, run_job
from legato.transports.native.group import NativeGroup
from legato.transports.native.player import NativePlayer
from legato.transports.rendezvous.join import Joined
from legato.transports.rendezvous.messages import Welcome
from legato.transports.rendezvous.shared_path import SharedPath

NUM_ITEMS = 30_000


class Flip:
    """Changes one bit of a stream."""

    def __init__(self, position: int, bit: int) -> None:
        self._position = position
        self._bit = bit

    def pass_on(self, data: bytearray) -> bytearray:
        if 0 <= self._position < len(data):
            data[self._position] ^= 1 << self._bit
        self._position -= len(data)
        return data


class Cut:
    """Ends a stream in the middle, as a reset does."""

    def __init__(self, position: int) -> None:
        self._position = position

    def pass_on(self, data: bytearray) -> bytearray:
        if self._position < len(data):
            raise ConnectionResetError
        self._position -= len(data)
        return data


@contextlib.contextmanager
def faulty_link(monkeypatch: pytest.MonkeyPatch, fault: Flip | Cut) -> Iterator[None]:
    """What rank 0 sends to rank 1 passes through `fault`; the way back is whole."""
    connect = NativePlayer.connect
    threads: list[threading.Thread] = []
    ends: list[socket.socket] = []

    def connect_through(
        self: NativePlayer, place: Welcome, connections: dict[int, list[Joined]], shared: dict[int, SharedPath]
    ) -> None:
        if place.member == 0:
            far, keys = connections[1][0].socket, connections[1][0].keys
            near, ours = socket.socketpair()
            ends.extend((near, far))
            connections = {**connections, 1: [Joined(ours, keys)]}
            for source, target, passes in ((near, far, fault), (far, near, None)):
                threads.append(threading.Thread(target=_pump, args=(source, target, passes)))
                threads[-1].start()
        connect(self, place, connections, shared)

    monkeypatch.setattr(NativePlayer, "connect", connect_through)
    yield
    for thread in threads:
        thread.join(20.0)
    for end in ends:
        end.close()


def _pump(source: socket.socket, target: socket.socket, fault: Flip | Cut | None) -> None:
    with contextlib.suppress(OSError):
        while data := bytearray(source.recv(1 << 16)):
            target.sendall(data if fault is None else fault.pass_on(data))
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def errors_of(monkeypatch: pytest.MonkeyPatch, fault: Flip | Cut) -> list[JobError]:
    def add_for_ever(group: NativeGroup) -> None:
        for step in itertools.count():
            value = np.full(NUM_ITEMS, group.rank + 1.0, np.float32)
            assert (group.push_pull("w", value, step=step) == 6.0).all(), "a wrong sum"

    def body(group: NativeGroup) -> JobError:
        with pytest.raises(JobError) as caught:
            add_for_ever(group)
        return caught.value

    with monkeypatch.context() as patch, faulty_link(patch, fault):
        return run_job(job_configs(Deployment(num_workers=3), shared_memory=False), body)


def test_a_changed_bit_is_named_as_such_by_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anywhere in the first steps: in headers and payloads, of contributions and of sums."""
    generator = random.Random(7)
    for _ in range(20):
        errors = errors_of(monkeypatch, Flip(generator.randrange(4 * NUM_ITEMS), generator.randrange(8)))
        for error in errors:
            assert isinstance(error, CorruptionError), error
            assert error.rank == 0
            assert "bytes changed on the link between member 1 and member 0: a " in str(error)
            assert "check the network between their hosts" in str(error)


def test_a_reset_in_the_middle_is_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in errors_of(monkeypatch, Cut(NUM_ITEMS)):
        assert isinstance(error, PeerLostError)
        assert error.rank in (0, 1)
        assert "the connection between member" in str(error)


FEW_FILES = """
import resource, sys
from legato.core.shards import Deployment
from legato.testing.native_job import job_configs, run_job
configs = job_configs(Deployment(num_workers=2), join_timeout_s=5.0)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 4096))
try:
    run_job(configs, lambda group: group.barrier())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("num_files", [6, 12, 24])
def test_too_few_files_are_a_limit_with_a_remedy(num_files: int) -> None:
    """Wherever it is met: a listener, the conductor's connections, the engine's own."""
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, str(num_files)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.stdout.startswith(f"LimitError this process may open {num_files} files"), done
    assert "`ulimit -n 4096`" in done.stdout
