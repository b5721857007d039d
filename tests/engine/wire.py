"""Frames as native/engine/protocol/frame.hpp describes them, made and read in Python: a peer that misbehaves."""

import socket
import struct
from dataclasses import astuple, dataclass, replace

from legato._native import crc32c

MAGIC = 0x4F54474C
PUSH, READY, SUM, ACKNOWLEDGE, HEARTBEAT, LATE, ABORT, GOODBYE, NOTHING, WITHOUT, MEASURE = range(1, 12)
FLOAT32 = 0

_LAYOUT = struct.Struct("<IBBBBBBHIqQQQIiI")
HEADER_BYTES = _LAYOUT.size + 4


@dataclass(frozen=True, kw_only=True)
class Header:
    magic: int = MAGIC
    version: int = 2
    kind: int = PUSH
    flags: int = 0
    dtype: int = FLOAT32
    codec: int = 0
    reduction: int = 0
    sender: int = 1
    epoch: int = 0
    step: int = 0
    part_offset: int = 0
    part_length: int = 0
    chunk_offset: int = 0
    tensor: int = 0
    rank: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True)
class Frame:
    header: Header
    payload: bytes


def encode(header: Header, payload: bytes = b"", *, checksum_error: int = 0, bare: bool = False) -> bytes:
    """The payload's length is filled in where the header leaves it open. With a bare header nothing is checksummed."""
    if header.payload_bytes == 0:
        header = replace(header, payload_bytes=len(payload))
    fields = _LAYOUT.pack(*astuple(header))
    if bare:
        return fields + bytes(4) + payload
    guarded = fields[4:] + struct.pack("<I", crc32c(payload) ^ checksum_error)
    return struct.pack("<I", header.magic ^ crc32c(guarded)) + guarded + payload


def decode(data: bytes) -> Header:
    """Its fields, whatever they are."""
    return Header(**dict(zip(Header.__dataclass_fields__, _LAYOUT.unpack(data[:-4]), strict=True)))


class Peer:
    """A member that is nothing but a socket."""

    def __init__(self, sock: socket.socket, member: int, timeout_s: float = 30.0) -> None:
        sock.settimeout(timeout_s)
        self.sock = sock
        self.member = member

    def send(self, header: Header, payload: bytes = b"", *, checksum_error: int = 0) -> None:
        self.sock.sendall(encode(replace(header, sender=self.member), payload, checksum_error=checksum_error))

    def receive(self) -> Frame:
        """The next frame that is no heartbeat, with its checksum verified."""
        while True:
            frame = self._receive_any()
            if frame.header.kind != HEARTBEAT:
                return frame

    def _receive_any(self) -> Frame:
        fields = self._read(HEADER_BYTES)
        header = decode(fields)
        assert header.magic == MAGIC ^ crc32c(fields[4:])
        payload = self._read(header.payload_bytes)
        assert fields[-4:] == struct.pack("<I", crc32c(payload))
        return Frame(replace(header, magic=MAGIC), payload)

    def receive_until(self, kind: int) -> Frame:
        while True:
            frame = self.receive()
            if frame.header.kind == kind:
                return frame

    def is_cut_off(self) -> bool:
        """Whether the other side has closed the connection; what it sent before is thrown away."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def _read(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            more = self.sock.recv(num_bytes - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)
