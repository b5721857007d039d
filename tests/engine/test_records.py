"""A protected wire: sums are right, whatever is not the next record is refused, and plaintext does not travel."""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from legato._native import Engine, Failure
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Mesh, connected_pair, eventually, spread
from tests.engine.numbers import contributions, reduced
from tests.engine.sealed import TAG_BYTES, SealedPeer
from tests.engine.wire import ABORT, HEADER_BYTES, PUSH, SUM, Header, encode

PROTECTED = ["authenticated", "encrypted"]
CHUNK = 64
LENGTH = 4 * CHUNK
LINK = "bytes changed on the link between member 0 and member 1: "
HEAD = HEADER_BYTES + TAG_BYTES
FRAME = HEAD + CHUNK + TAG_BYTES
ONES = np.ones(CHUNK // 4, np.float32).tobytes()
"""A chunk of them."""

pytestmark = pytest.mark.parametrize("wire", PROTECTED)


@pytest.mark.parametrize("num_lanes", [1, 2])
@pytest.mark.parametrize(("num_items", "chunk_bytes"), [(100_003, 4096), (7, 64), (300_000, 65536)])
def test_sums_are_right(wire: str, num_lanes: int, num_items: int, chunk_bytes: int) -> None:
    """Also in chunks that are no whole number of the cipher's blocks."""
    with Mesh(3, 1, kind="tcp", num_lanes=num_lanes, num_io_threads=2, chunk_bytes=chunk_bytes, wire=wire) as mesh:
        num_bytes = 4 * num_items
        mesh.declare(0, num_bytes, "float32", spread(num_bytes, max(num_bytes // 5 & ~3, 4), range(4)))
        for step in range(3):
            sources = contributions("float32", num_items, 3, seed=step)
            for total in mesh.push_pull(0, step, sources):
                np.testing.assert_array_equal(total, reduced("float32", "sum", sources))

        def count(key: str) -> int:
            return sum(engine.statistics()[key] for engine in mesh.engines)

        # A sender counts what it has written, which its peer may have read and answered by then.
        eventually(lambda: count("bytes_sent") == count("bytes_received"), "all that was sent has been received")


def test_members_on_one_host_need_none_of_it(wire: str) -> None:
    with Mesh(2, hosts=[0, 0], wire=wire) as mesh:
        mesh.declare(0, 400, "float32", spread(400, 100, range(2)))
        assert (mesh.push_pull(0, 0, [np.ones(100, np.float32)] * 2)[0] == 2).all()
        assert mesh.engines[0].statistics()["bytes_sent"] == 0


class Waiting(Lone):
    """Member 0 of two, with a task that waits for a sum of member 1 in four chunks, and tensor 0, which it serves."""

    def __init__(self, wire: str) -> None:
        super().__init__(num_workers=2, num_members=2, chunk_bytes=CHUNK, wire=wire)
        for tensor in range(2):
            self.declare(tensor, LENGTH, [(0, LENGTH, tensor, EVERYONE, EVERYONE)])
        self.total = np.zeros(LENGTH // 4, np.float32)
        self.handle = self.submit(1, self.total)
        for _ in range(4):
            self.peer.receive()

    @property
    def peer(self) -> SealedPeer:
        peer = self.peers[1]
        assert isinstance(peer, SealedPeer)
        return peer

    def sum_frames(self) -> list[bytes]:
        header = Header(kind=SUM, tensor=1, part_length=LENGTH)
        return [
            self.peer.seal(Header(**{**header.__dict__, "chunk_offset": offset}), ONES)
            for offset in range(0, LENGTH, CHUNK)
        ]

    def failure(self) -> Failure:
        """What this end says of it; the other end is told the same, on its own direction of the same wire."""
        assert self.handle.wait(TIMEOUT_S)
        assert self.handle.failure is not None, "the task is done"
        failure = self.engine.failure
        assert failure is not None
        assert self.peer.receive_until(ABORT).payload.decode() == failure.message
        return failure


def test_what_is_sealed_by_the_description_is_understood(wire: str) -> None:
    """By another implementation of it than the engine's."""
    with Waiting(wire) as lone:
        lone.peer.sock.sendall(b"".join(lone.sum_frames()))
        assert lone.handle.wait(TIMEOUT_S)
        assert lone.handle.failure is None
        assert (lone.total == 1).all()


def flip(frame: bytes, position: int) -> bytes:
    return frame[:position] + bytes([frame[position] ^ 0x10]) + frame[position + 1 :]


Attack = Callable[[list[bytes]], list[bytes]]
ATTACKS: dict[str, tuple[Attack, int]] = {
    "a header's length": (lambda f: [flip(f[0], 56), *f[1:]], 0),
    "a header's place": (lambda f: [flip(f[0], 40), *f[1:]], 0),
    "a header's tag": (lambda f: [flip(f[0], HEADER_BYTES), *f[1:]], 0),
    "a payload": (lambda f: [f[0], flip(f[1], HEAD + 5), *f[2:]], 1),
    "a payload's tag": (lambda f: [f[0], f[1][:-1] + bytes([f[1][-1] ^ 1]), *f[2:]], 1),
    "a frame left out": (lambda f: [f[0], *f[2:]], 1),
    "the first left out": (lambda f: f[1:], 0),
    "a frame repeated": (lambda f: [f[0], f[0], *f[1:]], 1),
    "frames swapped": (lambda f: [f[0], f[2], f[1], f[3]], 1),
    "payloads swapped": (lambda f: [f[0][:HEAD] + f[1][HEAD:], f[1][:HEAD] + f[0][HEAD:], *f[2:]], 0),
    "a payload cut short": (lambda f: [f[0][:HEAD] + f[0][HEAD + 4 :], *f[1:]], 0),
}
"""How frames change on their way, and how many are whole before that."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_is_not_the_next_record_is_refused(wire: str, attack: str) -> None:
    change, num_whole = ATTACKS[attack]
    with Waiting(wire) as lone:
        lone.peer.sock.sendall(b"".join(change(lone.sum_frames())))
        failure = lone.failure()
        assert (failure.kind, failure.rank) == ("corrupted", 1)
        assert failure.message.startswith(f"{LINK}a ")
        assert failure.message.endswith(" with a wrong tag reached member 0")
        before, after = lone.total[: num_whole * CHUNK // 4], lone.total[(num_whole + 1) * CHUNK // 4 :]
        assert (before == 1).all()
        assert not after.any(), "nothing beyond the chunk that was under way has been written"
        assert lone.handle.first_bytes <= num_whole * CHUNK


def test_a_header_alone_is_refused_without_waiting_for_what_it_promises(wire: str) -> None:
    with Waiting(wire) as lone:
        lone.peer.sock.sendall(flip(lone.sum_frames()[0], 56)[:HEAD])
        assert lone.failure().message == f"{LINK}a header with a wrong tag reached member 0"
        assert not lone.total.any()


@pytest.mark.parametrize("bare", [False, True])
def test_frames_without_tags_are_refused(wire: str, bare: bool) -> None:
    """Right in every field and, where they have one, with the right checksum."""
    with Waiting(wire) as lone:
        lone.peer.sock.sendall(encode(Header(kind=SUM, tensor=1, part_length=LENGTH), ONES, bare=bare))
        assert lone.failure().kind == "corrupted"
        assert not lone.total.any()


def test_a_contribution_with_a_wrong_tag_is_in_no_sum(wire: str) -> None:
    with Waiting(wire) as lone:
        frame = lone.peer.seal(Header(kind=PUSH, part_length=LENGTH), ONES)
        lone.peer.sock.sendall(flip(frame, HEAD + 3))
        assert lone.failure().message == f"{LINK}a payload with a wrong tag reached member 0"
        assert lone.engine.statistics()["slots"] == 0


def test_what_the_engine_said_cannot_be_said_back_to_it(wire: str) -> None:
    """Each direction has a key of its own."""
    with Lone(chunk_bytes=CHUNK, wire=wire) as lone:
        lone.declare(0, LENGTH, [(0, LENGTH, 1, EVERYONE, EVERYONE)])
        handle = lone.submit(0, np.zeros(LENGTH // 4, np.float32))
        sock = lone.peers[1].sock
        sock.sendall(sock.recv(FRAME))
        assert handle.wait(TIMEOUT_S)
        assert handle.failure is not None
        assert handle.failure.kind == "corrupted"


def test_a_stream_that_is_cut_off_at_any_byte_is_a_lost_connection(wire: str) -> None:
    """Between two frames, too: only a goodbye, which is sealed like any other frame, ends it well."""
    for num_bytes in (0, 1, HEADER_BYTES, HEAD - 1, HEAD, HEAD + 1, HEAD + CHUNK, FRAME - 1, FRAME, 2 * FRAME):
        with Waiting(wire) as lone:
            lone.peer.sock.sendall(b"".join(lone.sum_frames())[:num_bytes])
            lone.peer.sock.close()
            assert lone.handle.wait(TIMEOUT_S)
            failure = lone.handle.failure
            assert failure is not None
            assert (failure.kind, failure.rank) == ("peer_lost", 1), num_bytes


def test_members_with_different_keys_do_not_understand_each_other(wire: str) -> None:
    engines = [Engine(member=member, num_workers=2, num_members=2, heartbeat_s=0.5, wire=wire) for member in range(2)]
    left, right = connected_pair()
    engines[0].attach(1, [left.detach()], [(b"a" * 32, b"b" * 32)])
    engines[1].attach(0, [right.detach()], [(b"c" * 32, b"a" * 32)])
    try:
        eventually(lambda: all(engine.failure is not None for engine in engines), "both have failed")
        for engine in engines:
            assert engine.failure is not None
            assert engine.failure.kind == "corrupted"
            assert "bytes changed on the link between member " in engine.failure.message
    finally:
        for engine in engines:
            engine.close()


def test_a_known_plaintext_travels_only_where_it_is_not_encrypted(wire: str) -> None:
    secret = b"gradients that nobody else shall see"
    array = np.frombuffer(secret * 40, np.uint8).copy()
    with Lone(num_workers=1, num_members=2, chunk_bytes=CHUNK, wire=wire) as lone:
        lone.declare(3, array.nbytes, [(0, array.nbytes, 1, EVERYONE, EVERYONE)], dtype="uint8")
        lone.submit(3, array, step=77, rank=5)
        data = b""
        while len(data) < array.nbytes:
            data += lone.peers[1].sock.recv(1 << 16)
    is_readable = wire == "authenticated"
    assert (secret[:CHUNK] in data) == is_readable
    assert (struct.pack("<I", 0x4F54474C) in data) == is_readable
    assert (struct.pack("<q", 77) in data) == is_readable, "the step in a header"


def test_keys_must_be_there_and_have_their_length(wire: str) -> None:
    engine = Engine(member=0, num_workers=2, num_members=2, wire=wire)
    ours, theirs = connected_pair()
    with ours, theirs:
        with pytest.raises(ValueError, match="every socket to member 1 needs its keys"):
            engine.attach(1, [ours.dup().detach()])
        with pytest.raises(ValueError, match="a key of 31 bytes; accepted are 32"):
            engine.attach(1, [ours.detach()], [(b"x" * 31, b"y" * 32)])
        assert theirs.recv(1) == b"", "both are closed"
    engine.close()


EXIT = """
import ctypes, sys, threading
import numpy as np
from tests.engine.mesh import Mesh, spread
mesh = Mesh(2, kind="tcp", wire=sys.argv[1])
mesh.declare(0, 1 << 20, "float32", spread(1 << 20, 1 << 18, range(2)))
begun = threading.Event()
def work():
    for step in range(1_000_000):
        mesh.push_pull(0, step, [np.ones(1 << 18, np.float32)] * 2)
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
ctypes.CDLL(None).exit(0)  # C's own end: Python's would first end the thread in the middle of its wait
"""


def test_a_process_that_ends_while_frames_are_sealed_ends_well(wire: str) -> None:
    """libcrypto cleans up at exit, beside threads that still use it."""
    same_module = ["-S"] if sys.flags.no_site else []  # a sanitized one, where this is (make sanitize)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, *same_module, "-c", EXIT, wire],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
