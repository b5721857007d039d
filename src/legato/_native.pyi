"""The parts of legato that move bytes: they run in C++ and never hold the GIL while they work.

Arrays cross the border as anything with a writable, contiguous buffer; addresses as plain integers whose memory the
caller keeps alive until the handle is done.
"""

from collections.abc import Sequence
from typing import final

# ---- native/engine -------------------------------------------------------------------------------------------------

@final
class Failure:
    """Why a task, or the whole engine, failed."""

    kind: str
    """`peer_lost`, `protocol`, `mismatch` or `closed`."""
    rank: int
    """The member it is about, or -1."""
    tensor: int
    """The tensor it is about, or -1."""
    step: int
    """The step it is about, or -1."""
    message: str

@final
class Handle:
    """One submitted task."""

    def poll(self) -> bool:
        """Whether the task is over, well or badly."""
    def wait(self, timeout_s: float) -> bool:
        """Wait without the GIL; False when the time ran out first."""
    @property
    def failure(self) -> Failure | None: ...
    @property
    def missing(self) -> list[int]:
        """The workers that the servers are still waiting for, as far as they have said."""

@final
class Engine:
    """One member of a job: its connections, its send queues, its summation slots and its I/O threads.

    Members 0..num_workers-1 are workers; members from num_workers on are servers without a worker. Any member can own
    parts, so a joint member is a worker that appears as a part's server.
    """

    def __init__(
        self,
        *,
        member: int,
        num_workers: int,
        num_members: int,
        num_io_threads: int = 1,
        chunk_bytes: int = 65536,
        unsent_bytes: int = 131072,
        heartbeat_s: float = 5.0,
        trace: bool = False,
    ) -> None: ...
    def attach(self, peer: int, sockets: Sequence[int]) -> None:
        """Take over connected, authenticated sockets to `peer` (one or more; the engine closes them)."""
    def declare(self, tensor: int, name: str, num_bytes: int, dtype: str) -> None:
        """Make a tensor known; a frame of an undeclared tensor or beyond its bytes ends the connection it came on."""
    def lay_out(self, tensor: int, from_step: int, parts: Sequence[tuple[int, int, int, int, int]]) -> None:
        """From `from_step` on, the tensor travels as these parts: (offset, length, server, writer, reader).

        Writer and reader are a rank, or -1 for every worker. A push_pull has (-1, -1), a broadcast (root, -1),
        a reduce-scatter (-1, rank), an all-to-all (rank, rank).
        """
    def set_credit(self, from_step: int, credit_bytes: int) -> None:
        """From `from_step` on, at most this many bytes are in flight (0: no limit)."""
    def submit(
        self,
        *,
        tensor: int,
        step: int,
        priority: int,
        source: int,
        destination: int,
        reduction: str = "sum",
        manual: bool = False,
    ) -> Handle:
        """Start the synchronisation of a tensor; addresses may be equal (in place).

        With `manual`, no part leaves before `start` names it: for a policy that runs in Python.
        """
    def start(self, handle: Handle, part: int) -> None: ...
    def finished_parts(self, timeout_s: float) -> list[tuple[int, int, int]]:
        """(tensor, step, part) of every manual part that finished since the last call; waits for the first."""
    @property
    def failure(self) -> Failure | None:
        """What ended the engine, if anything did."""
    def statistics(self) -> dict[str, int]:
        """Counters: bytes and frames sent and received, slots and handles alive, connections, threads."""
    def take_events(self) -> list[tuple[int, str, int, int, int, int]]:
        """With `trace`: (nanoseconds, what, tensor, step, offset, length) since the last call, in order."""
    def close(self) -> None:
        """Stop the threads, close the sockets, fail what is still under way. Can be called twice."""
