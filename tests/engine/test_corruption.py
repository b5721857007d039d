"""Bytes that change, stop or lie on their way: they touch no memory, and both ends name the link or the liar."""

import mmap
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legato._native import Failure
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, eventually
from tests.engine.wire import ABORT, HEADER_BYTES, PUSH, SUM, Frame, Header, encode

CHUNK = 64
LENGTH = 2 * CHUNK
LINK = "bytes changed on the link between member 0 and member 1: "
ANSWER = Header(kind=SUM, tensor=1, part_length=LENGTH)


class Waiting(Lone):
    """Member 0 of two, with two tasks that wait for sums of member 1, and tensor 0, which it serves itself."""

    def __init__(self) -> None:
        super().__init__(num_workers=2, num_members=2, chunk_bytes=CHUNK)
        for tensor in range(3):
            self.declare(tensor, LENGTH, [(0, LENGTH, min(tensor, 1), EVERYONE, EVERYONE)])
        self.arrays = [np.zeros(LENGTH // 4, np.float32) for _ in range(2)]
        self.handles = [self.submit(tensor, array) for tensor, array in enumerate(self.arrays, start=1)]
        for _ in range(4):
            self.peers[1].receive()

    @property
    def is_untouched(self) -> bool:
        return not any(array.any() for array in self.arrays)

    def outcome(self) -> tuple[Failure, Frame]:
        """What this end says of it, and what the other end is told."""
        eventually(lambda: self.engine.failure is not None, "the engine fails")
        assert self.engine.failure is not None
        told = self.peers[1].receive_until(ABORT)
        assert told.payload.decode() == self.engine.failure.message
        return self.engine.failure, told


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_a_changed_bit_in_a_header_is_found_before_anything_follows_from_it(byte: int) -> None:
    """A header alone, without its payload: nobody waits for more, whatever length it seems to have."""
    frame = bytearray(encode(ANSWER, b"\1" * CHUNK)[:HEADER_BYTES])
    frame[byte] ^= 1 << (byte % 8)
    with Waiting() as lone:
        lone.peers[1].sock.sendall(frame)
        failure, told = lone.outcome()
        assert failure.kind == "corrupted"
        assert failure.message == f"{LINK}a header with a wrong checksum reached member 0"
        assert struct.unpack("<q", struct.pack("<Q", told.header.part_offset)) == (failure.rank,) == (1,)
        assert lone.is_untouched


@pytest.mark.parametrize("byte", [0, 1, 31, CHUNK - 1])
def test_a_changed_bit_in_a_payload_names_the_link_and_the_tensor(byte: int) -> None:
    frame = bytearray(encode(ANSWER, b"\1" * CHUNK))
    frame[HEADER_BYTES + byte] ^= 0x10
    with Waiting() as lone:
        lone.peers[1].sock.sendall(frame)
        failure, _ = lone.outcome()
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("corrupted", 1, 1, 0)
        assert failure.message == f"{LINK}a payload with a wrong checksum reached member 0"
        assert not lone.arrays[1].any()


def test_a_frame_that_is_cut_off_at_any_byte_is_a_lost_connection() -> None:
    frame = encode(ANSWER, b"\1" * CHUNK)
    for num_bytes in range(len(frame)):
        with Waiting() as lone:
            lone.peers[1].sock.sendall(frame[:num_bytes])
            lone.peers[1].sock.close()
            assert lone.handles[0].wait(TIMEOUT_S)
            failure = lone.handles[0].failure
            assert failure is not None
            assert (failure.kind, failure.rank) == ("peer_lost", 1), num_bytes
            assert "the connection between member 0 and member 1 ended" in failure.message
            assert not lone.arrays[1].any()


NUMBERS = st.sampled_from([0, 1, CHUNK, LENGTH, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
FIELDS = {
    "kind": st.integers(0, 255),
    "flags": st.integers(0, 255),
    "dtype": st.integers(0, 255),
    "codec": st.integers(0, 255),
    "reduction": st.integers(0, 255),
    "step": st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 2),
    "part_offset": NUMBERS,
    "part_length": NUMBERS,
    "chunk_offset": NUMBERS,
    "tensor": st.integers(0, 3) | st.integers(0, 2**32 - 1),
    "rank": st.integers(-(2**31), 2**31 - 1),
    "payload_bytes": st.integers(0, 2**32 - 1),
}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    base=st.sampled_from([PUSH, SUM]),
    changes=st.fixed_dictionaries({}, optional=FIELDS),
    num_bytes=st.sampled_from([0, 1, 4, CHUNK, LENGTH, 5000]),
)
def test_no_header_that_is_checksummed_and_wrong_does_harm(base: int, changes: dict[str, int], num_bytes: int) -> None:
    """Any fields: the engine goes on or fails, with words; it neither dies nor holds more than was declared."""
    header = replace(Header(kind=base, tensor=int(base == SUM), part_length=LENGTH), **changes)
    with Waiting() as lone:
        lone.peers[1].sock.sendall(encode(header, bytes(num_bytes)))
        lone.peers[1].sock.close()
        eventually(lambda: lone.engine.statistics()["connections"] == 0, "the connection has ended")
        assert lone.engine.statistics()["slots"] <= 1
        assert lone.engine.statistics()["slot_bytes"] <= mmap.PAGESIZE
        if lone.engine.failure is not None:
            assert lone.engine.failure.message or header.kind == ABORT


def test_a_worker_holds_one_sum_of_a_part_at_a_time() -> None:
    """One that runs ahead through the steps could make its server hold any number of them."""
    with Waiting() as lone:
        for step in range(2):
            lone.peers[1].send(Header(kind=PUSH, part_length=LENGTH, step=step), bytes(CHUNK))
        failure, _ = lone.outcome()
        assert (failure.kind, failure.rank, failure.tensor, failure.step) == ("protocol", 1, 0, 1)
        assert "a contribution before the answer to the last one" in failure.message


def test_no_peer_can_shut_out_the_layouts_to_come() -> None:
    """A step in the far future is one worker's word, and no reason to refuse a plan for the next one."""
    with Waiting() as lone:
        lone.peers[1].send(Header(kind=PUSH, part_length=LENGTH, step=2**62), bytes(CHUNK))
        eventually(lambda: lone.engine.statistics()["slots"] == 1, "the contribution is in")
        lone.engine.lay_out(0, 1, [(0, CHUNK, 0, EVERYONE, EVERYONE), (CHUNK, CHUNK, 0, EVERYONE, EVERYONE)])
        lone.peers[1].send(Header(kind=PUSH, part_length=CHUNK, step=2**62), bytes(CHUNK))
        failure, _ = lone.outcome()
        assert (failure.kind, failure.rank) == ("protocol", 1)
        assert "another layout" in failure.message


def test_words_that_are_no_text() -> None:
    with Waiting() as lone:
        lone.peers[1].send(Header(kind=ABORT, part_offset=1, flags=4), b"caf\xe9 \xff\xfe and more")
        assert lone.handles[0].wait(TIMEOUT_S)
        failure = lone.handles[0].failure
        assert failure is not None
        assert failure.message.startswith("caf\N{REPLACEMENT CHARACTER}")
        assert "and more" in repr(failure)
