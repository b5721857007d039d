"""Trouble: a peer that lies, stalls, leaves or dies costs the job a typed failure that names it, never a hang,
a crash or a wrong sum.
"""

import contextlib
import socket
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from legato._native import Engine, Failure, Handle
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Mesh, eventually, finish, spread
from tests.engine.numbers import contributions
from tests.engine.wire import ABORT, GOODBYE, HEARTBEAT, LATE, MEASURE, NOTHING, PUSH, SUM, Header, Peer, encode

CHUNK = 4096
LENGTH = 2 * CHUNK
PAYLOAD = bytes(CHUNK)


def joint_member(**options: Any) -> Lone:
    """Member 0 of three workers. It serves tensor 0; member 1 serves tensor 1."""
    lone = Lone(num_workers=3, num_members=3, chunk_bytes=CHUNK, **options)
    for tensor in (0, 1):
        lone.declare(tensor, LENGTH, [(0, LENGTH, tensor, EVERYONE, EVERYONE)])
    return lone


def push(**changes: Any) -> Header:
    return replace(Header(kind=PUSH, part_length=LENGTH), **changes)


def failure_of(handle: Handle) -> Failure:
    assert handle.wait(TIMEOUT_S)
    assert handle.failure is not None
    return handle.failure


def engine_failure(lone: Lone) -> Failure:
    eventually(lambda: lone.engine.failure is not None, "the engine fails")
    failure = lone.engine.failure
    assert failure is not None
    return failure


BAD_FRAMES = {
    "another version": (push(version=1), PAYLOAD, "protocol version 1"),
    "unknown kind": (push(kind=99), PAYLOAD, "unknown frame kind 99"),
    "unknown dtype": (push(dtype=200), PAYLOAD, "unknown dtype"),
    "unknown codec": (push(codec=99), PAYLOAD, "unknown dtype, reduction or codec"),
    "unknown reduction": (push(reduction=77), PAYLOAD, "unknown dtype, reduction or codec"),
    "another epoch": (push(epoch=4), PAYLOAD, "epoch 4"),
    "oversized": (push(payload_bytes=1 << 30), b"", "oversized"),
    "oversized control": (Header(kind=ABORT, payload_bytes=1 << 20), b"", "oversized"),
    "undeclared tensor": (push(tensor=5), PAYLOAD, "not declared"),
    "another dtype": (push(dtype=1), PAYLOAD, "another dtype"),
    "before the first layout": (push(step=-1), PAYLOAD, "not laid out"),
    "no such part": (push(part_offset=64), PAYLOAD, "not in the layout"),
    "another length of the part": (push(part_length=1 << 40), PAYLOAD, "not in the layout"),
    "beyond the part": (push(chunk_offset=LENGTH), PAYLOAD, "beyond its part"),
    "far beyond the part": (push(chunk_offset=2**64 - CHUNK), PAYLOAD, "beyond its part"),
    "half an item": (push(), PAYLOAD[:-1], "cuts an item"),
    "no payload": (push(), b"", "payload"),
    "a payload for nothing": (push(kind=HEARTBEAT), PAYLOAD, "payload"),
    "served elsewhere": (push(tensor=1), PAYLOAD, "served elsewhere"),
    "not its beginning": (push(chunk_offset=CHUNK), PAYLOAD, "beginning"),
    "an answer out of the blue": (push(kind=SUM, tensor=1), PAYLOAD, "nothing here waits"),
    "an answer from elsewhere": (push(kind=SUM), PAYLOAD, "does not serve"),
    "an unknown failure": (Header(kind=ABORT, flags=50), b"", "unknown kind of failure"),
    "half a worker": (Header(kind=LATE), b"123", "cut off"),
    "an unknown flag": (push(flags=4), PAYLOAD, "an unknown flag"),
    "a measure from elsewhere": (push(kind=MEASURE), bytes(16), "a measure from a member that does not serve"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_ends_its_connection_and_names_its_sender(name: str) -> None:
    header, payload, why = BAD_FRAMES[name]
    with joint_member() as lone:
        lone.release(1)
        lone.peers[1].send(header, payload)
        failure = engine_failure(lone)
        assert (failure.kind, failure.rank) == ("protocol", 1)
        assert why in failure.message
        assert lone.peers[1].is_cut_off()
        # Member 2 is told, and its own connection lives.
        told = lone.peers[2].receive_until(ABORT)
        assert struct.unpack("<q", struct.pack("<Q", told.header.part_offset)) == (1,)
        assert why in told.payload.decode()


def test_a_list_of_nobody_and_a_failure_without_words() -> None:
    """Both are empty: what is copied has no address, which only `make sanitize` sees."""
    with joint_member() as lone:
        lone.peers[1].send(push(kind=LATE, tensor=1))
        lone.peers[1].send(Header(kind=ABORT, part_offset=1))
        assert engine_failure(lone).message == ""
        assert lone.peers[2].receive_until(ABORT).payload == b""


def test_a_frame_in_the_name_of_another() -> None:
    with joint_member() as lone:
        lone.peers[1].member = 2
        lone.peers[1].send(push(), PAYLOAD)
        assert "member 2" in engine_failure(lone).message


def test_a_wrong_checksum() -> None:
    with joint_member() as lone:
        lone.peers[1].send(push(step=3), PAYLOAD, checksum_error=1)
        failure = engine_failure(lone)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("corrupted", 1, 0, 3)


def test_a_changed_payload() -> None:
    with joint_member() as lone:
        array = np.zeros(LENGTH // 4, np.float32)
        handle = lone.submit(1, array)
        lone.peers[1].receive()
        lone.peers[1].receive()
        lone.peers[1].send(push(kind=SUM, tensor=1), b"\1" * CHUNK, checksum_error=1 << 20)
        failure = failure_of(handle)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("corrupted", 1, 1, 0)
        assert "tensor1" in failure.message


@pytest.mark.parametrize("begins_with_local", [True, False])
def test_a_contribution_never_counts_twice(begins_with_local: bool) -> None:
    """Worker 1 contributes twice and worker 2 not at all: two plus one are not three."""
    array = np.ones(LENGTH // 4, np.float32)
    with joint_member() as lone:
        handle = lone.submit(0, array) if begins_with_local else None
        for chunk_offset in (0, CHUNK):
            lone.peers[1].send(push(chunk_offset=chunk_offset), PAYLOAD)
        if handle is None:
            handle = lone.submit(0, array)
        lone.peers[1].send(push(), PAYLOAD)
        failure = failure_of(handle)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("protocol", 1, 0, 0)
        assert "a second contribution" in failure.message


def test_a_contribution_to_a_sum_that_has_gone_out() -> None:
    array = np.ones(LENGTH // 4, np.float32)
    with joint_member() as lone:
        handle = lone.submit(0, array)
        for peer in (1, 2):
            for chunk_offset in (0, CHUNK):
                lone.peers[peer].send(push(chunk_offset=chunk_offset), PAYLOAD)
        for peer in (1, 2):
            assert [lone.peers[peer].receive().header.kind for _ in range(2)] == [SUM, SUM]
        finish([handle])
        lone.peers[1].send(push(), PAYLOAD)
        failure = engine_failure(lone)
        assert (failure.kind, failure.rank) == ("protocol", 1)
        assert lone.engine.statistics()["slots"] == 0


def test_repeated_chunks() -> None:
    with joint_member() as lone:
        for _ in range(2):
            lone.peers[1].send(push(chunk_offset=0), PAYLOAD)
        assert engine_failure(lone).kind == "protocol"


def test_different_reductions_are_a_mismatch() -> None:
    with joint_member() as lone:
        handle = lone.submit(0, np.ones(LENGTH // 4, np.float32), reduction="max")
        eventually(lambda: lone.engine.statistics()["slots"] == 1, "the own contribution is in")
        lone.peers[1].send(push(), PAYLOAD)
        assert failure_of(handle).kind == "mismatch"


@pytest.mark.parametrize("num_bytes", [0, 10, 64, 1000])
def test_a_peer_that_dies_in_the_middle(num_bytes: int) -> None:
    """After nothing, half a header, a header, and half a payload."""
    with joint_member() as lone:
        handle = lone.submit(0, np.ones(LENGTH // 4, np.float32), step=7)
        lone.peers[1].sock.sendall(encode(push(step=7), PAYLOAD)[:num_bytes])
        lone.peers[1].sock.close()
        failure = failure_of(handle)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("peer_lost", 1, 0, 7)
        assert lone.peers[2].receive_until(ABORT).header.part_offset == 1


def test_a_silent_peer() -> None:
    """It holds its connection but says nothing; the other peer does."""
    with joint_member(heartbeat_s=1.0) as lone:
        handle = lone.submit(0, np.ones(LENGTH // 4, np.float32))
        while not handle.wait(0.02):
            lone.peers[2].send(Header(kind=HEARTBEAT))
        failure = failure_of(handle)
        assert (failure.kind, failure.rank) == ("peer_lost", 1)
        assert failure.message.startswith(
            "member 1 has been silent towards member 0 for 1 s: it has stopped, or the link"
        )


def test_a_heartbeat_keeps_a_connection() -> None:
    with Mesh(2, heartbeat_s=0.5) as mesh:
        mesh.declare(0, 4, "float32", [(0, 4, 0, EVERYONE, EVERYONE)])
        sent = [engine.statistics()["frames_received"] for engine in mesh.engines]
        eventually(
            lambda: all(
                engine.statistics()["frames_received"] > before + 10
                for engine, before in zip(mesh.engines, sent, strict=True)
            ),
            "heartbeats for twice the silence allowed",
        )
        mesh.push_pull(0, 0, contributions("float32", 1, 2))


def test_an_abort_reaches_those_who_did_not_see_it() -> None:
    """A server whose worker 0 dies tells worker 1; a worker that is told fails its tasks with the same rank."""
    with Lone(num_workers=2, num_members=3, member=2) as server:
        server.peers[0].sock.close()
        told = server.peers[1].receive_until(ABORT)
    with joint_member() as lone:
        handle = lone.submit(0, np.ones(LENGTH // 4, np.float32))
        lone.peers[1].send(replace(told.header, payload_bytes=0, part_offset=2), told.payload)
        failure = failure_of(handle)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("peer_lost", 2, 0, 0)


def test_who_is_late_is_named() -> None:
    """By the server to those who wait, and by a joint member to itself."""
    with joint_member(heartbeat_s=1.0) as lone:
        handle = lone.submit(0, np.ones(LENGTH // 4, np.float32))
        for chunk_offset in (0, CHUNK):
            lone.peers[1].send(push(chunk_offset=chunk_offset), PAYLOAD)
        late = lone.peers[1].receive_until(LATE)
        assert np.frombuffer(late.payload, np.int32).tolist() == [2]
        assert (late.header.tensor, late.header.step) == (0, 0)
        eventually(lambda: handle.missing == [2], "the own handle knows")
        other = lone.submit(1, np.ones(LENGTH // 4, np.float32))
        lone.peers[1].send(push(kind=LATE, tensor=1), struct.pack("<2i", 1, 2))
        eventually(lambda: other.missing == [1, 2], "told by another server")


def test_memory_is_left_alone_after_a_failure() -> None:
    """A sum is half received when another peer dies; its memory may be freed, so the rest goes nowhere."""
    array = np.zeros(LENGTH // 4, np.float32)
    with joint_member() as lone:
        handle = lone.submit(1, array)
        for _ in range(2):
            lone.peers[1].receive()
        encoded = encode(Header(kind=SUM, tensor=1, part_length=LENGTH, sender=1), b"\1" * CHUNK)
        lone.peers[1].sock.sendall(encoded[:2000])
        eventually(lambda: bool(array.any()), "the first half is in place")
        lone.peers[2].sock.close()
        assert failure_of(handle).rank == 2
        array[:] = 0
        lone.peers[1].sock.sendall(encoded[2000:])
        lone.peers[1].send(Header(kind=GOODBYE))
        lone.release(1)
        assert lone.peers[1].is_cut_off()
        assert not array.any()


CHUNK_OF_A_SUM = encode(Header(kind=SUM, part_length=LENGTH), b"\1" * CHUNK)


@pytest.mark.parametrize(
    "other",
    [
        CHUNK_OF_A_SUM + encode(Header(kind=SUM, part_length=LENGTH, chunk_offset=CHUNK), b"\1" * CHUNK),
        encode(Header(kind=NOTHING, part_length=LENGTH)),
    ],
    ids=["a whole sum", "nothing"],
)
def test_a_sum_comes_on_one_connection(other: bytes) -> None:
    """A chunk is half received on one connection when another brings the whole answer. The memory would be its owner's
    again while the first connection still writes to it.
    """
    array = np.zeros(LENGTH // 4, np.float32)
    with contextlib.ExitStack() as stack:
        engine = Engine(member=0, num_workers=2, num_members=2, chunk_bytes=CHUNK)
        stack.callback(engine.close)
        pairs = [socket.socketpair() for _ in range(2)]
        engine.attach(1, [theirs.detach() for _, theirs in pairs])
        first, second = (Peer(stack.enter_context(ours), 1) for ours, _ in pairs)
        engine.declare(0, "t", LENGTH, "float32")
        engine.lay_out(0, 0, [(0, LENGTH, 1, EVERYONE, EVERYONE)])
        address = array.ctypes.data
        handle = engine.submit(tensor=0, step=0, rank=0, source=address, destination=address, num_bytes=array.nbytes)
        for _ in range(2):
            first.receive_until(PUSH)
        first.sock.sendall(CHUNK_OF_A_SUM[:1064])
        eventually(lambda: bool(array.any()), "a part of the chunk is in place")
        second.sock.sendall(other)
        failure = failure_of(handle)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("protocol", 1, 0, 0)
        assert "an answer out of turn" in failure.message
        array[:] = 0
        first.sock.sendall(CHUNK_OF_A_SUM[1064:])
        first.send(Header(kind=GOODBYE))
        assert first.is_cut_off()
        assert not array.any()


def test_an_exception_on_an_io_thread_is_a_failure_that_everybody_hears_of() -> None:
    """A tensor as large as a process's address space: whoever sums the first contribution to it runs out of memory."""
    length = 1 << 47
    with Lone(num_workers=3, num_members=3, chunk_bytes=1 << 24) as lone:
        lone.declare(0, length, [(0, length, 0, EVERYONE, EVERYONE)])
        lone.declare(1, LENGTH, [(0, LENGTH, 1, EVERYONE, EVERYONE)])
        handle = lone.submit(1, np.ones(LENGTH // 4, np.float32))
        lone.peers[1].send(Header(kind=PUSH, part_length=length), PAYLOAD)
        failure = failure_of(handle)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("internal", 0, 1, 0)
        assert "member 0: its machine has no memory left for more sums" in failure.message
        for peer in (1, 2):
            told = lone.peers[peer].receive_until(ABORT)
            assert told.header.part_offset == 0
            assert "member 0: its machine has no memory left for more sums" in told.payload.decode()


def test_a_member_that_leaves_is_missed_only_when_needed() -> None:
    with Mesh(2) as mesh:
        mesh.declare(0, 4096, "float32", spread(4096, 1024, range(2)))
        mesh.push_pull(0, 0, contributions("float32", 1024, 2))
        mesh.engines[1].close()
        eventually(lambda: mesh.engines[0].statistics()["connections"] == 0, "the goodbye has come")
        assert mesh.engines[0].failure is None
        array = np.ones(1024, np.float32)
        handle = mesh.engines[0].submit(
            tensor=0,
            step=1,
            rank=0,
            source=array.ctypes.data,
            destination=array.ctypes.data,
            num_bytes=array.nbytes,
        )
        failure = failure_of(handle)
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("peer_lost", 1, 0, 1)


def test_a_member_that_leaves_in_the_middle() -> None:
    with Mesh(3) as mesh:
        mesh.declare(0, 1 << 20, "float32", spread(1 << 20, 1 << 16, range(3)))
        array = np.ones(1 << 18, np.float32)
        handle = mesh.engines[0].submit(
            tensor=0,
            step=0,
            rank=0,
            source=array.ctypes.data,
            destination=array.ctypes.data,
            num_bytes=array.nbytes,
        )
        mesh.engines[2].close()
        failure = failure_of(handle)
        assert (failure.kind, failure.rank) == ("peer_lost", 2)
