"""Links of an elastic job that change what travels: between a worker's engine and its connection to the next worker
is a relay, which changes, drops, repeats, swaps or cuts one frame when the process gets a signal.

Frames are those of an authenticated wire: whatever is done to them, nobody takes them for right.
"""

import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import torch
from torch import nn

from legato.elastic.membership import Membership
from legato.testing.elastic_worker import Loop
from legato.transports.native.player import NativePlayer
from legato.transports.rendezvous.join import Joined
from legato.transports.rendezvous.messages import Welcome
from legato.transports.rendezvous.shared_path import SharedPath

NEVER = 10**9
HEADER_BYTES = 64
TAG_BYTES = 16
PAYLOAD_AT = 56
"""Where a header says how many bytes follow it (native/engine/protocol/frame.hpp)."""

Change = Callable[[Random, bytes, bytes], bytes]
"""What goes on in place of two frames, one behind the other; ConnectionError to cut the stream."""


def flip(random: Random, one: bytes, next_one: bytes) -> bytes:
    changed = bytearray(one)
    changed[random.randrange(len(one))] ^= 1 << random.randrange(8)
    return bytes(changed) + next_one


def drop(random: Random, one: bytes, next_one: bytes) -> bytes:
    del random, one
    return next_one


def double(random: Random, one: bytes, next_one: bytes) -> bytes:
    del random
    return one + one + next_one


def swap(random: Random, one: bytes, next_one: bytes) -> bytes:
    del random
    return next_one + one


def insert(random: Random, one: bytes, next_one: bytes) -> bytes:
    return one + random.randbytes(random.randrange(1, 100)) + next_one


def cut(random: Random, one: bytes, next_one: bytes) -> bytes:
    del next_one
    raise CutError(one[: random.randrange(len(one))])


class CutError(ConnectionError):
    """The stream ends after these bytes."""

    def __init__(self, rest: bytes) -> None:
        super().__init__()
        self.rest = rest


CHANGES: dict[str, Change] = {
    "flipped bit": flip,
    "dropped frame": drop,
    "doubled frame": double,
    "swapped frames": swap,
    "inserted bytes": insert,
    "cut in a frame": cut,
}


def signal_of(name: str) -> int:
    """Which signal asks for a change."""
    return signal.SIGRTMIN + list(CHANGES).index(name)


class Stream:
    """What one end sends, frame by frame."""

    def __init__(self, due: deque[Change], random: Random) -> None:
        self._due = due
        self._random = random
        self._bytes = b""
        self._held: tuple[Change, bytes] | None = None

    def pass_on(self, data: bytes) -> bytes:
        self._bytes += data
        passed = b""
        while (frame := self._next()) is not None:
            if self._held is not None:
                (change, before), self._held = self._held, None
                passed += change(self._random, before, frame)
            elif self._due:
                self._held = self._due.popleft(), frame
            else:
                passed += frame
        return passed

    def _next(self) -> bytes | None:
        if len(self._bytes) < HEADER_BYTES:
            return None
        [num_bytes] = struct.unpack_from("<I", self._bytes, PAYLOAD_AT)
        end = HEADER_BYTES + TAG_BYTES + (num_bytes + TAG_BYTES if num_bytes else 0)
        if len(self._bytes) < end:
            return None
        frame, self._bytes = self._bytes[:end], self._bytes[end:]
        return frame


class Meddled(Loop):
    """A script in a process whose links can be meddled with."""

    def __init__(self, model: nn.Sequential, optimizer: torch.optim.Optimizer, reach: Callable[[str], None]) -> None:
        super().__init__(model, optimizer, reach)
        self._due: deque[Change] = deque()
        self._random = Random(0)
        for name, change in CHANGES.items():
            signal.signal(signal_of(name), self._asked_for(change))
        connect = NativePlayer.connect

        def connect_through(
            player: NativePlayer, place: Welcome, connections: dict[int, list[Joined]], shared: dict[int, SharedPath]
        ) -> None:
            following = [peer for peer in connections if peer > place.member] or list(connections)
            if following:
                peer = min(following)
                [way] = connections[peer]
                connections = {**connections, peer: [Joined(self._relay(way.socket), way.keys)]}
            connect(player, place, connections, shared)

        Membership.max_faults = NEVER
        NativePlayer.connect = connect_through  # type: ignore[assignment,method-assign]

    def _asked_for(self, change: Change) -> Callable[..., None]:
        def ask(*_: Any) -> None:
            self._due.append(change)

        return ask

    def _relay(self, far: socket.socket) -> socket.socket:
        """What the engine takes for its connection; between the two, what it sends is looked at."""
        near, given = socket.socketpair()
        self._due.clear()  # what was asked for in an epoch that has ended before
        sent, received = Stream(self._due, self._random), None
        far.settimeout(None)
        threads = [
            threading.Thread(target=_pump, args=(near, far, sent), daemon=True),
            threading.Thread(target=_pump, args=(far, near, received), daemon=True),
        ]
        for thread in threads:
            thread.start()
        threading.Thread(target=_close, args=(threads, near, far), daemon=True).start()
        return given


def _pump(source: socket.socket, target: socket.socket, stream: Stream | None) -> None:
    with suppress(OSError):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data if stream is None else stream.pass_on(data))
        except CutError as end:
            target.sendall(end.rest)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _close(threads: list[threading.Thread], *ends: socket.socket) -> None:
    for thread in threads:
        thread.join()
    for end in ends:
        end.close()
