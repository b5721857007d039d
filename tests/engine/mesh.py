"""Members of a job in one process: engines joined by sockets, and what tests do with all of them at once."""

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from legato._native import Coding, Engine, Handle

Array = NDArray[Any]
Part = tuple[int, int, int, int, int]

EVERYONE = -1
TIMEOUT_S = 30.0


def connected_pair(kind: str = "unix") -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
        return left, right


def shared_memory(num_bytes: int) -> int:
    """Memory that two engines can map."""
    memory = os.memfd_create("legato-test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, num_bytes)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return memory


def link(
    one: tuple[int, Engine], other: tuple[int, Engine], kind: str, *, num_lanes: int = 1, memory_bytes: int = 1 << 20
) -> None:
    """Join two members: by sockets (`unix` or `tcp`), or by shared memory (`shared`)."""
    (number, engine), (peer, peer_engine) = one, other
    if kind == "shared":
        memory = shared_memory(memory_bytes)
        left, right = socket.socketpair()
        engine.attach_shared(peer, left.detach(), os.dup(memory))
        peer_engine.attach_shared(number, right.detach(), memory)
        return
    pairs = [connected_pair(kind) for _ in range(num_lanes)]
    keys = [(secrets.token_bytes(32), secrets.token_bytes(32)) for _ in pairs]
    engine.attach(peer, [left.detach() for left, _ in pairs], keys)
    peer_engine.attach(number, [right.detach() for _, right in pairs], [(theirs, ours) for ours, theirs in keys])


def spread(num_bytes: int, part_bytes: int, servers: Sequence[int]) -> list[Part]:
    """The layout of a push_pull: parts in turn to every server."""
    starts = range(0, num_bytes, part_bytes)
    return [
        (start, min(part_bytes, num_bytes - start), servers[i % len(servers)], EVERYONE, EVERYONE)
        for i, start in enumerate(starts)
    ]


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition that another thread brings about."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.001)


def finish(handles: Sequence[Handle]) -> None:
    for handle in handles:
        assert handle.wait(TIMEOUT_S), f"missing {handle.missing}"
        assert handle.failure is None, handle.failure


class Mesh:
    """Every member connected with every other; those on one of the `hosts` by shared memory."""

    def __init__(
        self,
        num_workers: int,
        num_servers: int = 0,
        *,
        kind: str = "unix",
        num_lanes: int = 1,
        hosts: Sequence[int] | None = None,
        options: Sequence[dict[str, Any]] | None = None,
        **common: Any,
    ) -> None:
        self.num_workers = num_workers
        self.num_members = num_workers + num_servers
        each = options or [{}] * self.num_members
        common = {"num_workers": num_workers, "num_members": self.num_members, "hosts": hosts or (), **common}
        self.engines = [Engine(member=i, **{**common, **each[i]}) for i in range(self.num_members)]
        for i in range(self.num_members):
            for j in range(i):
                together = hosts is not None and hosts[i] == hosts[j]
                link((i, self.engines[i]), (j, self.engines[j]), "shared" if together else kind, num_lanes=num_lanes)
        self.tensors: dict[int, int] = {}

    @property
    def workers(self) -> list[Engine]:
        return self.engines[: self.num_workers]

    def declare(
        self,
        tensor: int,
        num_bytes: int,
        dtype: str,
        parts: Sequence[Part],
        coding: Coding | None = None,
        staleness: int | None = None,
        backups: int = 0,
    ) -> None:
        for engine in self.engines:
            engine.declare(tensor, f"tensor{tensor}", num_bytes, dtype, coding, staleness, backups)
        self.lay_out(tensor, 0, parts)

    def lay_out(self, tensor: int, from_step: int, parts: Sequence[Part]) -> None:
        for engine in self.engines:
            engine.lay_out(tensor, from_step, parts)

    def submit(
        self,
        tensor: int,
        step: int,
        sources: Sequence[Array],
        destinations: Sequence[Array],
        *,
        rank: int = 0,
        each: Sequence[dict[str, Any]] | None = None,
        **more: Any,
    ) -> list[Handle]:
        """One task on every worker; `each` has what differs between them."""
        return [
            engine.submit(
                tensor=tensor,
                step=step,
                rank=rank,
                source=source.ctypes.data,
                destination=destination.ctypes.data,
                num_bytes=min(source.nbytes, destination.nbytes),
                **more,
                **own,
            )
            for engine, source, destination, own in zip(
                self.workers, sources, destinations, each or [{}] * self.num_workers, strict=True
            )
        ]

    def push_pull(self, tensor: int, step: int, sources: Sequence[Array], **more: Any) -> list[Array]:
        destinations = [np.zeros_like(source) for source in sources]
        finish(self.submit(tensor, step, sources, destinations, **more))
        return destinations

    def close(self) -> None:
        # At the same time, as processes would: a close waits for its peers.
        with ThreadPoolExecutor(len(self.engines)) as pool:
            list(pool.map(Engine.close, self.engines))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
