"""Frames: an engine in the middle of its work, and a peer that sends it anything."""

import mmap
import random
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np

from bench.fuzz.mutation import mutated
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE
from tests.engine.wire import ABORT, GOODBYE, HEARTBEAT, LATE, MEASURE, NOTHING, PUSH, SUM, Header, encode

_CHUNK = 64
_LENGTH = 2 * _CHUNK
_KINDS = (PUSH, SUM, ABORT, GOODBYE, HEARTBEAT, LATE, NOTHING, MEASURE)
_NUMBERS = (0, 1, _CHUNK, _LENGTH, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
_WIDTHS = {"kind": 8, "flags": 8, "dtype": 8, "codec": 8, "reduction": 8, "sender": 16, "epoch": 32, "tensor": 32}
_SIGNED = {"step": 64, "rank": 32}
_OVER_S = 10.0


def make(chance: random.Random) -> bytes:
    """Some frames in a row, most of them with right checksums: behind a wrong one nothing is looked at."""
    return b"".join(_frame(chance) for _ in range(chance.randint(1, 4)))


def run(data: bytes) -> None:
    """The engine goes on or fails, with words, and holds no more than what was declared."""
    with Lone(num_workers=2, num_members=2, chunk_bytes=_CHUNK) as lone:
        for tensor in range(3):
            lone.declare(tensor, _LENGTH, [(0, _LENGTH, min(tensor, 1), EVERYONE, EVERYONE)])
        for tensor in (1, 2):
            lone.submit(tensor, np.zeros(_LENGTH // 4, np.float32))
        peer = lone.peers[1].sock
        peer.settimeout(_OVER_S)
        with suppress(ConnectionError):  # it has heard enough
            peer.sendall(data)
        lone.release(1)
        peer.close()
        until_s = time.monotonic() + _OVER_S
        while lone.engine.statistics()["connections"]:
            assert time.monotonic() < until_s, "the connection does not end"
            time.sleep(0.0002)
        held = lone.engine.statistics()
        assert held["slots"] <= 1, held
        assert held["slot_bytes"] <= mmap.PAGESIZE, held


def _frame(chance: random.Random) -> bytes:
    kind = chance.choice(_KINDS)
    header = Header(kind=kind, tensor=int(kind == SUM), part_length=_LENGTH, chunk_offset=chance.choice((0, _CHUNK)))
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        name = chance.choice(list(Header.__dataclass_fields__)[2:])
        header = replace(header, **{name: _value(chance, name)})
    payload = bytes(chance.choice((0, 1, 4, 16, _CHUNK, _CHUNK, _LENGTH, 5000)))
    whole = encode(header, payload)
    return whole if chance.random() < 0.9 else mutated(chance, [whole])


def _value(chance: random.Random, name: str) -> int:
    if name in _SIGNED:
        bits = _SIGNED[name]
        return chance.choice(
            (-1, 0, 1, 2, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, chance.randrange(1 << (bits - 1)))
        )
    bits = _WIDTHS.get(name, 32 if name == "payload_bytes" else 64)
    return chance.choice((*_NUMBERS, chance.randrange(16), chance.randrange(1 << bits))) % (1 << bits)
