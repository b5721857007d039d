"""One engine among peers that are nothing but sockets in the test's hands."""

import select
import socket
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from legato._native import Engine, Handle
from tests.engine.mesh import Part
from tests.engine.sealed import ENGINES_KEY, PEERS_KEY, SealedPeer
from tests.engine.wire import Peer


class Lone:
    def __init__(self, *, num_workers: int = 2, num_members: int = 2, member: int = 0, **options: Any) -> None:
        self.engine = Engine(member=member, num_workers=num_workers, num_members=num_members, **options)
        wire = options.get("wire", "plain")
        self.peers: dict[int, Peer] = {}
        self._watched: dict[int, socket.socket] = {}
        self._lent: list[NDArray[Any]] = []
        for peer in range(num_members):
            if peer == member:
                continue
            ours, theirs = socket.socketpair()
            # What the kernel holds cannot be overtaken: let it be little.
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            self._watched[peer] = theirs.dup()
            self.engine.attach(peer, [theirs.detach()], [(ENGINES_KEY, PEERS_KEY)])
            self.peers[peer] = Peer(ours, peer) if wire == "plain" else SealedPeer(ours, peer, wire)

    def declare(self, tensor: int, num_bytes: int, parts: list[Part], dtype: str = "float32") -> None:
        self.engine.declare(tensor, f"tensor{tensor}", num_bytes, dtype)
        self.engine.lay_out(tensor, 0, parts)

    def submit(self, tensor: int, array: NDArray[Any], *, rank: int = 0, step: int = 0, **more: Any) -> Handle:
        """In place. The array is kept alive: until the handle is done, or for ever, it belongs to the engine."""
        self._lent.append(array)
        address = array.ctypes.data
        return self.engine.submit(
            tensor=tensor,
            step=step,
            rank=rank,
            source=address,
            destination=address,
            num_bytes=array.nbytes,
            **more,
        )

    def is_stuck(self, peer: int) -> bool:
        """Whether the kernel takes no more bytes for this peer."""
        _, writable, _ = select.select([], [self._watched[peer]], [], 0)
        return not writable

    def release(self, peer: int) -> None:
        """Let go of the second hold on the engine's end, so that closing it is seen."""
        self._watched.pop(peer).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for peer in self.peers.values():
            peer.sock.close()
        for held in self._watched.values():
            held.close()
        self.engine.close()
