"""Members on one host, through shared memory: frames of any size, peers that die or lie, and nothing left behind."""

import mmap
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pytest

from legato._native import Engine, Failure
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Mesh, eventually, finish, link, shared_memory, spread
from tests.engine.numbers import contributions, reduced
from tests.engine.wire import GOODBYE, HEARTBEAT, PUSH, Header, encode
from tests.leftovers import expect_nothing_beyond, open_files_and_threads

CHUNK = 4096
CONTROL_BYTES = 4096


def two_engines(memory_bytes: int, **options: float) -> list[Engine]:
    engines = [Engine(member=i, num_workers=2, num_members=2, chunk_bytes=65536, **options) for i in range(2)]  # type: ignore[arg-type]
    link((0, engines[0]), (1, engines[1]), "shared", memory_bytes=memory_bytes)
    return engines


@pytest.mark.parametrize("frames_that_fit", [4, 5, 9])
def test_a_small_ring_is_used_again_and_again(frames_that_fit: int) -> None:
    """Parts of odd lengths, so that frames end anywhere before the ring's end; chunks longer than it has room for."""
    engines = two_engines(2 * (CONTROL_BYTES + frames_that_fit * (4096 + 64)))
    sizes = [4, 60, 64, 68, 128, 5_000, 20_004]
    rounds = 20
    try:
        for engine in engines:
            for tensor, num_bytes in enumerate(sizes):
                engine.declare(tensor, f"t{tensor}", num_bytes, "int32")
                engine.lay_out(tensor, 0, spread(num_bytes, 13_000, range(2)))
        for step in range(rounds):
            sources = [contributions("int32", size // 4, 2, seed=step) for size in sizes]
            results = [[np.zeros_like(array) for array in pair] for pair in sources]
            finish(
                [
                    engine.submit(
                        tensor=tensor,
                        step=step,
                        rank=0,
                        source=sources[tensor][rank].ctypes.data,
                        destination=results[tensor][rank].ctypes.data,
                        num_bytes=sources[tensor][rank].nbytes,
                    )
                    for rank, engine in enumerate(engines)
                    for tensor in range(len(sizes))
                ]
            )
            for arrays, received in zip(sources, results, strict=True):
                for result in received:
                    np.testing.assert_array_equal(result, reduced("int32", "sum", arrays))
        assert all(engine.statistics()["bytes_sent"] == 0 for engine in engines)
        assert all(engine.statistics()["bytes_shared"] > rounds * sum(sizes) for engine in engines)
    finally:
        close(engines)


def close(engines: list[Engine]) -> None:
    mesh = object.__new__(Mesh)
    mesh.engines = engines
    mesh.close()


class Neighbour:
    """A peer that is nothing but memory and a socket in the test's hands. The engine is member 0, this is member 1."""

    def __init__(self, **options: float) -> None:
        self.engine = Engine(member=0, num_workers=2, num_members=2, chunk_bytes=CHUNK, **options)  # type: ignore[arg-type]
        memory = shared_memory(2 << 20)
        self.memory = mmap.mmap(memory, 2 << 20)
        self.bell, theirs = socket.socketpair()
        self.engine.attach_shared(1, theirs.detach(), memory)
        self.engine.declare(0, "t", 2 * CHUNK, "float32")
        self.engine.lay_out(0, 0, [(0, 2 * CHUNK, 0, EVERYONE, EVERYONE)])
        self.array = np.ones(CHUNK // 2, np.float32)

    def write(self, frame: bytes, *, written: int | None = None) -> None:
        """A frame at the beginning of the ring from the higher member to the lower."""
        start = (1 << 20) + CONTROL_BYTES
        self.memory[start : start + len(frame)] = frame
        self.memory[1 << 20 : (1 << 20) + 8] = struct.pack("<Q", len(frame) if written is None else written)
        self.bell.send(b"\0")

    @property
    def num_read(self) -> int:
        """How far the engine has read that ring."""
        number: int = struct.unpack_from("<Q", self.memory, (1 << 20) + 64)[0]
        return number

    def wait_for_frames(self) -> None:
        """Leave word in the other ring that it is empty."""
        struct.pack_into("<I", self.memory, 128, 1)

    def failure(self) -> Failure:
        eventually(lambda: self.engine.failure is not None, "the engine fails")
        failure = self.engine.failure
        assert failure is not None
        return failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bell.close()
        self.engine.close()
        self.memory.close()


def shared(header: Header, payload: bytes = b"") -> bytes:
    return encode(header, payload, bare=True)


FRAME = shared(Header(kind=PUSH, part_length=2 * CHUNK), bytes(CHUNK))


@pytest.mark.parametrize(
    ("frame", "written", "why"),
    [
        (b"GET " + FRAME[4:], None, "bad magic"),
        (FRAME, 65, "out of order"),
        (FRAME, 1 << 40, "out of order"),
        (FRAME, 64, "longer than what was written"),
        (bytes(64), None, "leads nowhere"),
        (shared(Header(kind=PUSH, part_length=2 * CHUNK, sender=0), bytes(CHUNK)), None, "from member 0"),
        (shared(Header(kind=PUSH, part_length=2 * CHUNK, epoch=9), bytes(CHUNK)), None, "epoch 9"),
        (shared(Header(kind=PUSH, part_length=2 * CHUNK, payload_bytes=1 << 30), b""), None, "oversized"),
        (shared(Header(kind=PUSH, part_length=2 * CHUNK, tensor=3), bytes(CHUNK)), None, "not declared"),
    ],
    ids=["magic", "odd position", "far position", "long", "skip", "sender", "epoch", "oversized", "tensor"],
)
def test_memory_that_lies_ends_the_link_and_names_the_peer(frame: bytes, written: int | None, why: str) -> None:
    with Neighbour() as neighbour:
        neighbour.write(frame, written=written)
        failure = neighbour.failure()
        assert (failure.kind, failure.rank) == ("protocol", 1)
        assert why in failure.message


@pytest.mark.parametrize("begun", [False, True], ids=["before", "in the middle of"])
def test_a_dead_peer_is_noticed_at_once_and_no_sum_comes_of_it(begun: bool) -> None:
    with Neighbour(heartbeat_s=1000.0) as neighbour:
        address = neighbour.array.ctypes.data
        handle = neighbour.engine.submit(
            tensor=0, step=0, rank=0, source=address, destination=address, num_bytes=neighbour.array.nbytes
        )
        if begun:
            neighbour.write(FRAME)
        neighbour.bell.close()
        assert handle.wait(TIMEOUT_S)
        assert handle.failure is not None
        assert (handle.failure.kind, handle.failure.rank) == ("peer_lost", 1)


def test_a_peer_that_waits_is_not_woken_for_nothing() -> None:
    """Two that wait for each other would ring each other's bells forever."""
    with Neighbour(heartbeat_s=1000.0) as neighbour:
        neighbour.wait_for_frames()
        frame = shared(Header(kind=HEARTBEAT))
        for number in (1, 2):  # when the second has been read, what the engine did about the first is over
            neighbour.write(number * frame)
            eventually(lambda number=number: neighbour.num_read == number * len(frame), "the frame is read")  # type: ignore[misc]
        neighbour.bell.setblocking(False)
        with pytest.raises(BlockingIOError):
            neighbour.bell.recv(1)


def test_a_peer_that_stops_is_lost_after_its_silence() -> None:
    with Neighbour(heartbeat_s=0.2) as neighbour:
        assert "silent" in neighbour.failure().message


def test_what_was_written_before_the_end_is_read() -> None:
    """A goodbye and a closed socket come together: it is not a loss."""
    with Neighbour() as neighbour:
        neighbour.write(shared(Header(kind=HEARTBEAT)) + shared(Header(kind=GOODBYE)))
        neighbour.bell.close()
        eventually(lambda: neighbour.engine.statistics()["connections"] == 0, "the goodbye has come")
        assert neighbour.engine.failure is None


def test_memory_that_cannot_be() -> None:
    """It is the engine's all the same, and is closed."""
    engine = Engine(member=0, num_workers=2, num_members=2)
    before = open_files_and_threads()
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 1 << 20)
    for memory, why in [(unsealed, "sealed"), (shared_memory(4096), "no room")]:
        with pytest.raises(ValueError, match=why):
            engine.attach_shared(1, socket.socket(socket.AF_UNIX).detach(), memory)
    expect_nothing_beyond(before)
    engine.close()


def test_nothing_is_left_behind() -> None:
    def num_mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:legato-test")

    before = open_files_and_threads()
    for _ in range(10):
        with Mesh(3, 1, kind="shared", num_io_threads=2) as mesh:
            mesh.declare(0, 4096, "float32", spread(4096, 512, range(4)))
            mesh.push_pull(0, 0, contributions("float32", 1024, 3))
            assert num_mappings() > 0
        expect_nothing_beyond(before)
        assert num_mappings() == 0


@pytest.mark.parametrize("num_bytes", [0, 4096, 64 << 20 | 4096])
def test_memory_of_a_size_that_a_peer_made_up_is_refused(num_bytes: int) -> None:
    engine = Engine(member=0, num_workers=2, num_members=2)
    try:
        bell, theirs = socket.socketpair()
        with bell, pytest.raises(ValueError, match="shared memory"):
            engine.attach_shared(1, theirs.detach(), shared_memory(num_bytes))
    finally:
        engine.close()
