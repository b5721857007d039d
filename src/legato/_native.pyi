"""The parts of legato that move bytes: they run in C++ and never hold the GIL while they work.

Arrays cross the border as anything with a writable, contiguous buffer; addresses as plain integers whose memory the
caller keeps alive until the handle is done.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from numpy.typing import NDArray
from typing_extensions import Buffer

# ---- native/kernels ------------------------------------------------------------------------------------------------
#
# A dtype is float32, float64, float16, bfloat16, int8, uint8, int32 or int64; a buffer holds contiguous items of it at
# any alignment. Accumulators of float16 and bfloat16 hold float32. A wrong name, size or access is a ValueError.

# numpy declares its arrays as buffers from Python 3.12 on.
_Items: TypeAlias = Buffer | NDArray[Any]

def load(dtype: str, accumulator: _Items, input: _Items) -> None:
    """accumulator = input, widened."""

def reduce(dtype: str, reduction: str, accumulator: _Items, input: _Items) -> None:
    """accumulator op= input for a sum, average, min, max or product.

    Average adds, and leaves the division to the factor of `store`. Integers wrap; NaN wins over every number.
    """

def store(dtype: str, output: _Items, accumulator: _Items, factor: float = 1.0) -> None:
    """output = accumulator × factor, rounded to nearest even; integers are truncated toward zero.

    A factor of 1 / n divides by n, integers of any size exactly. Any other multiplies; integers then pass through
    float64 and saturate.
    """

def add(dtype: str, total: _Items, input: _Items) -> None:
    """total += input, rounded once."""

def scale(dtype: str, data: _Items, factor: float) -> None:
    """data ×= factor, as `store` does it."""

def measure(dtype: str, items: _Items) -> tuple[float, float]:
    """The sum of squares, in float64, and the largest magnitude, NaN where an item is; the same bits everywhere."""

def crc32c(data: _Items, seed: int = 0) -> int:
    """The CRC-32C of data; with the checksum of what precedes it as the seed, that of both together."""

def instruction_set() -> str:
    """What the kernels run on: avx512, avx2, neon or scalar."""

def available_instruction_sets() -> list[str]:
    """Those this machine can run, from the slowest to the fastest."""

def set_instruction_set(name: str) -> None:
    """For tests, which compare every set with the scalar one."""

def place_of(tensor: int, step: int, offset: int) -> int:
    """What chance in a part's codec depends on: the same number on all members."""

def mix(x: int) -> int:
    """64 bits, as chance mixes seeds and places."""

def largest(items: _Items) -> float:
    """The largest magnitude among float32 items; NaN is larger than all, and nothing is 0."""

@final
class Codec:
    """float32 items in fewer bytes, and back; equal bytes on every machine. Parameters out of range are ValueErrors."""

    @staticmethod
    def raw() -> Codec:
        """The items as they are."""
    @staticmethod
    def fp16() -> Codec: ...
    @staticmethod
    def bf16() -> Codec: ...
    @staticmethod
    def onebit(scaling: bool) -> Codec:
        """Signs, times the mean magnitude, or times 1 without scaling."""
    @staticmethod
    def topk(density: float) -> Codec:
        """This share of the items, those of the largest magnitude; at least one."""
    @staticmethod
    def randomk(density: float, seed: int) -> Codec:
        """This share of the items, by chance that all members share; at least one."""
    @staticmethod
    def dithering(num_levels: int, levels: str, norm: str, seed: int) -> Codec:
        """Levels of a norm (`max` or `l2`), `linear` or `natural` (powers of two), by chance right on average."""
    @staticmethod
    def int8() -> Codec:
        """Whole numbers, 127 of which are the `scale`."""
    def encoded_bytes(self, num_items: int) -> int:
        """It follows from the number of items alone."""
    def encode(
        self, output: _Items, items: _Items, *, place: int = 0, contributor: int = 0, scale: float = 1.0
    ) -> None:
        """`place` and `contributor` are what chance depends on: which items, and whose."""
    def decode(
        self, items: _Items, input: _Items, *, place: int = 0, contributor: int = 0, scale: float = 1.0
    ) -> None: ...

# ---- native/engine -------------------------------------------------------------------------------------------------

@final
class Failure:
    """Why a task, or the whole engine, failed."""

    kind: str
    """`peer_lost`, `protocol`, `mismatch`, `closed`, `corrupted` (bytes changed on a link) or `internal`: the member
    itself cannot go on."""
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
    def wait_measured(self, timeout_s: float) -> bool:
        """Wait without the GIL until `measure` is there or the task is over; False when the time ran out first."""
    @property
    def measure(self) -> tuple[float, float] | None:
        """Of what was submitted `measured`: as `legato._native.measure` of each part, added up in their order."""
    def wait_first(self, num_bytes: int, timeout_s: float) -> bool:
        """Wait without the GIL for that many `first_bytes`, or until the task is over; False when the time ran out."""
    @property
    def first_bytes(self) -> int:
        """Bytes from the beginning on whose result is in the destination: the engine does not touch them any more."""
    @property
    def failure(self) -> Failure | None: ...
    @property
    def empty(self) -> bool:
        """Whether every worker was absent: there is no sum, and the destination is as it was."""
    @property
    def without(self) -> list[int]:
        """With backups, when it is done: the workers whose contributions are not, or not all, in the result."""
    @property
    def missing(self) -> list[int]:
        """The workers that the servers are still waiting for, as far as they have said."""

LAST_STEP: int
"""The step of a worker's last contribution to a running total."""

@final
class Coding:
    """How a tensor of float32 is encoded: contributions by one codec, sums by another."""

    def __init__(
        self,
        *,
        push: Codec,
        pull: Codec,
        feeds_back: bool = False,
        server_feeds_back: bool = False,
        momentum: float = 0.0,
        has_agreed_scale: bool = False,
    ) -> None:
        """With `feeds_back`, what a contribution loses is added to the worker's next one; with `server_feeds_back` the
        same for sums. `momentum` is Nesterov's, of each worker's items before they are encoded. With
        `has_agreed_scale` every task brings a scale.
        """

def find_libcrypto() -> None:
    """RuntimeError where this machine has no library for an authenticated or encrypted wire."""

@final
class Engine:
    """One member of a job: its connections, its send queues, its summation slots and its I/O threads.

    Members 0..num_workers-1 are workers; members from num_workers on are servers without a worker. Any member can own
    parts, so a joint member is a worker that appears as a part's server.

    A child that the process forks keeps no descriptor of it. There `close` does nothing, `failure` and every handle's
    failure are `closed`, and everything else is a RuntimeError.
    """

    def __init__(
        self,
        *,
        member: int,
        num_workers: int,
        num_members: int,
        epoch: int = 0,
        num_io_threads: int = 1,
        chunk_bytes: int = 65536,
        heartbeat_s: float = 5.0,
        trace: bool = False,
        hosts: Sequence[int] = (),
        wire: str = "plain",
        num_learners: int = 0,
    ) -> None:
        """`epoch` and `chunk_bytes` must be the same on all members: a frame of another epoch, or with a longer
        chunk, is a protocol error. A chunk is a multiple of 64 bytes. `hosts`, the same on all members too, has the
        host of each: what all workers sum then crosses the network once per host. Without it each has its own. `wire`,
        the same as well, says what protects frames on sockets: `plain` (a checksum), `authenticated`, `encrypted`. The
        last `num_learners` workers add nothing to sums, and averages do not count them.
        """
    def attach(self, peer: int, sockets: Sequence[int], keys: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Take over connected, authenticated sockets to `peer` (one or more; the engine closes them).

        `keys`, for sending and receiving, 32 bytes each, belong to each socket; only a plain wire needs none.
        """
    def attach_shared(self, peer: int, socket: int, memory: int) -> None:
        """Take over what links two members on one host: a memfd that both map, and a connected socket as its bell.

        The memory is sealed against shrinking, begins as zeros and has room for four frames of 4 KB in each direction.
        """
    def declare(
        self,
        tensor: int,
        name: str,
        num_bytes: int,
        dtype: str,
        coding: Coding | None = None,
        staleness: int | None = None,
        backups: int = 0,
    ) -> None:
        """Make a tensor known; a frame of an undeclared tensor or beyond its bytes ends the connection it came on.

        So every member must have declared a tensor and laid it out before any worker submits it. With a `staleness`
        it is a running total of everything that is ever submitted: each task gets the total as it is when every
        worker has contributed to the step that many before. A task of `LAST_STEP` is a worker's last. With `backups` a
        step is over without the last so many workers: an average is divided by the number of those who are in it.
        """
    def lay_out(self, tensor: int, from_step: int, parts: Sequence[tuple[int, int, int, int, int]]) -> None:
        """From `from_step` on, the tensor travels as these parts: (offset, length, server, writer, reader).

        Writer and reader are a rank, or -1 for every worker. A push_pull has (-1, -1), a broadcast (root, -1),
        a reduce-scatter (-1, rank), an all-to-all (rank, rank). Parts come in the order of their offsets, do not
        overlap and cut no item. A layout may be replaced as long as its first step has not been seen.
        """
    def set_credit(self, from_step: int, credit_bytes: int) -> None:
        """From `from_step` on, at most this many bytes are in flight (0: no limit).

        In flight is what has started and is not yet handed over to the network: credit must not wait for other workers.
        """
    def set_stage_barrier(self, from_step: int, tensors: Sequence[int]) -> None:
        """From `from_step` on, this member answers for these tensors only when all sums of the step that it makes of
        them are complete; no tensors: at once."""
    def submit(
        self,
        tensor: int,
        step: int,
        rank: int,
        source: int,
        destination: int,
        num_bytes: int,
        reduction: str = "sum",
        absent: bool = False,
        after: Handle | None = None,
        scale: int = 0,
        source_segment: tuple[int, int] | None = None,
        destination_segment: tuple[int, int] | None = None,
        measured: bool = False,
    ) -> Handle:
        """Start the synchronisation of a tensor; addresses may be equal (in place). What has the smallest `rank` goes
        first, to its server and back.

        Each address has `num_bytes`, those of the tensor; memory for a segment of it only has the segment's (offset,
        length) instead. ValueError, before anything is sent, where that is not what the tensor was declared with or
        does not hold what this worker writes and reads. Memory of other parts is never touched. Until the
        handle is done the destination holds nothing of use, and after a failure neither does a source that is also the
        destination. A tensor has one task under way at a time, and its steps only grow; a worker that does not read a
        part is done with it when its server has all contributions.

        With `absent`, this worker adds nothing to the sum and only receives it; its source is not read. With `after`,
        no part leaves before that task is done; `scale` is the address of the float32 that it brings, for a coding that
        needs one. With `measured`, servers tell every worker that asks the measure of each complete sum, ahead of it.
        """
    @property
    def failure(self) -> Failure | None:
        """What ended the engine, if anything did."""
    def statistics(self) -> dict[str, int]:
        """Counters: `bytes_sent`, `bytes_received`, `frames_sent`, `frames_received` of connections, `bytes_shared`
        through memory, both ways; and what is alive: `slots` (sums under way, and running totals) and `slot_bytes`
        (memory kept for them), `handles`, `in_flight_bytes` and its `peak_in_flight_bytes`, `connections` (shared ones
        too), `threads`.
        """
    def flows(self) -> list[tuple[int, int, int]]:
        """(peer, bytes that it has acknowledged, microseconds in which some were on their way) of each connection that
        leaves this machine, since it began. What a peer had no room for was not on its way."""
    def links(self) -> list[tuple[int, int, int, int, int]]:
        """(peer, bytes sent, bytes received, and the same through shared memory) of each member with which something
        has been exchanged."""
    def set_trace(self, first_step: int, last_step: int, max_events: int) -> None:
        """Trace these steps from now on, up to so many events between two calls of `take_events`; 0 is none."""
    def take_events(self) -> list[tuple[int, str, int, int, int, int]]:
        """With `trace` or `set_trace`: (nanoseconds, what, tensor, step, offset, length) since the last call, in order.

        Nanoseconds are those of the monotonic clock.

        What: `ready` and `start` of a part, `sent` when its bytes are handed over and its credit is back, `finish`
        when its answer is here, and `done` for the task. Replay `ready` and `sent` to find the same `start`s.
        """
    def close(self) -> None:
        """Fail what is still under way, send what is queued, say goodbye, stop the threads and close the sockets.

        It waits at most `heartbeat_s` for peers to close their ends. Can be called twice.
        """

@final
class WordWatch:
    """A thread that sees when words of the host's memory are set, in the order in which it is given them."""

    def __init__(self) -> None: ...
    def stop(self) -> None:
        """What has not been seen by now never is."""

class StepGate:
    """Which steps may begin: while members agree on a plan from a step on, nobody begins that step or a later one."""

    def __init__(self) -> None: ...
    @property
    def latest_step(self) -> int:
        """The newest step that has begun; -1 before the first."""
    def admit(self, step: int) -> bool:
        """Whether the step may begin now; then it has begun."""
    def begin(self, step: int, action: Callable[[], None]) -> None:
        """Run the action when the step may begin: now, or in `open`."""
    def close_from(self, step: int) -> bool:
        """Let no step from this one on begin; False, and nothing is closed, where it has begun."""
    def open(self) -> None:
        """The round is over: run what was held, in the order in which it came."""

@final
class Collector:
    """Takes the tensors of a schedule one by one, and gives a bucket to the engine when all of it is there.

    A tensor is known by its place among `members`: (the engine's number, name, bytes, the number of the tensor by which
    its scale is agreed on, if its codec needs one). From any thread; averages only.
    """

    def __init__(
        self, engine: Engine, gate: StepGate | None, members: Sequence[tuple[int, str, int, int | None]]
    ) -> None:
        """Without a gate, steps begin at once."""
    def follow(self, from_step: int, buckets: Sequence[tuple[Sequence[int], int, int]]) -> None:
        """Buckets (members, rank of the contribution, rank of the sum) for steps from this one on; every member is in
        one of them."""
    def set_pieces(self, index: int, piece_bytes: int, words: int) -> None:
        """From its next step on a tensor passes through the host in pieces: of what is added, nothing is ready.

        At the address `words` is a uint32 for each piece, which outlives this; when a piece has arrived, or never will,
        its word is set to the step's mark. ValueError for a tensor whose scale has to be agreed on.
        """
    def set_coded(self, index: int, most_bytes: int) -> None:
        """From its next step on what is added of a tensor is encoded, and so is what comes back: its parts as they
        travel, one behind the other. They have at most so many bytes in any layout; there are words for as many."""
    def set_measured(self, measured: bool) -> None:
        """Whether what is added from now on is measured (`Handle.measure`)."""
    def ready(self, index: int, num_bytes: int) -> None:
        """The first bytes of a tensor's newest step are ready, so many of them."""
    def ready_when(self, watch: WordWatch, word: int, mark: int, index: int, num_bytes: int) -> None:
        """The same, when a word has reached a mark; on the watch's thread, without the GIL."""
    @staticmethod
    def mark_of(step: int) -> int:
        """What the words of a step are set to: marks grow from step to step, and go round at 2^32."""
    def add(
        self,
        index: int,
        address: int,
        num_bytes: int,
        absent: bool,
        memory: object,
        destination: int | None = None,
        unread: bool = False,
    ) -> int:
        """A tensor is ready for its next step, which is returned; `memory` is kept alive for it. Its average comes back
        to the same address, or to the `destination`; of one that is `unread`, only what this member sums itself.

        ValueError for what cannot be; then nothing of its bucket has been sent.
        """
    def set_like(self, index: int, tensor: object) -> None:
        """Have `add_like` take tensors of the class, dtype, shape and order of this one, on the host.

        Their class has to tell native code what they are (`__dlpack_c_exchange_api__`); else it takes none.
        """
    def add_like(self, index: int, tensor: object) -> bool:
        """Like `add` with a tensor's own memory in both directions; False, and nothing is added, of any other than
        `set_like` has said."""
    def send(self, index: int) -> None:
        """Somebody waits for this tensor: whatever of its bucket is there goes now."""
    def poll(self, index: int) -> bool:
        """Whether its newest step is over, well or badly."""
    def sent(self, index: int, timeout_s: float) -> Handle | None:
        """The task of its newest step, as soon as the engine has it, without the GIL; None when the time ran out.

        ValueError where the engine has refused it.
        """
    def step(self, index: int) -> int:
        """Its newest step; -1 before the first."""
    def is_measured(self, index: int) -> bool:
        """Whether its newest step is measured."""
    def next_step(self, index: int) -> int:
        """What is added next is of this step."""
    def forget(self, index: int) -> None:
        """Let go of its memory, if its newest step is over."""
    @property
    def latest_step(self) -> int:
        """The newest step of any tensor; -1 before the first."""
    @property
    def latest_steps(self) -> list[int]:
        """Of each tensor."""
    def set_next_steps(self, steps: Sequence[int]) -> None:
        """What is added next is of this step, by place."""
    def set_reason(self, reason: str) -> None:
        """From now on native code hears this as the reason of failures; nothing waits for its bucket any more."""
    def overdue(self, seconds: float) -> list[tuple[int, int, list[int]]]:
        """(place, step, ranks that it waits for) of what was started and is not over after so long."""
    @property
    def address(self) -> int:
        """What the functions of native/collector_api.h take."""

class PlainPass:
    """What the hooks of one schedule have in common."""

    number: int
    """The backward pass whose plain gradients they hand over by themselves; -1: none."""
    def __init__(self, current_backward: Callable[[], int], tensor: type, pending: type, in_flight: object) -> None:
        """`current_backward` gives the number of the pass that calls a hook. A gradient under way has the class
        `pending` instead of `tensor`, and its parameter the state `in_flight`."""
    is_timed: bool
    """Whether they note when gradients come."""
    def note(self, index: int) -> None:
        """Such a gradient has come, and is handed over elsewhere."""
    def take(self) -> list[tuple[int, int]]:
        """Index and nanoseconds (of `time.monotonic_ns`) of each that has come since the last call."""

class GradientHook:
    """What autograd calls before and after it accumulates a parameter's gradient (`before`, `after`).

    What is plain goes straight to a collector, as by `Collector.add_like`, and is pending from then on. For all else
    the functions are called that it was made with.
    """

    def __init__(
        self,
        plain: PlainPass,
        each: Any,
        index: int,
        look: Callable[[], object],
        before: Callable[[Any, Any], None],
        after: Callable[[Any, Any], None],
    ) -> None:
        """`each` is what the schedule knows of the parameter: its state, gradient and so on are set."""
    def aim(
        self,
        collector: Collector,
        place: int,
        passages: list[Any],
        refusal: Callable[[int, Exception], Exception],
        tell: Callable[[int], None] | None,
    ) -> None:
        """From now on hand plain gradients over here; `passages` has each at the parameter's index from then on.

        `refusal` makes an error of what the collector says, and `tell` is called before with the index.
        """
    def rest(self) -> None:
        """Hand nothing over any more."""
    @property
    def each(self) -> Any: ...
    @property
    def otherwise(self) -> Any:
        """What `after` calls for what is not plain."""
    def before(self, gradient: object) -> None: ...
    def after(self, parameter: object) -> None: ...

def cuda_wait_for_word(stream: int, word: int, mark: int) -> None:
    """Hold a CUDA stream until a word of pinned memory has reached a mark; the host goes on.

    RuntimeError where there is no driver, or it refuses.
    """

def cuda_write_word(stream: int, word: int, mark: int) -> None:
    """Let a CUDA stream set a word of pinned memory when it has come so far, and what it has copied is there.

    RuntimeError where there is no driver, or it refuses.
    """

def cuda_sleep_while_waiting() -> None:
    """Threads that wait for the current CUDA device sleep from now on, unless somebody has chosen otherwise.

    RuntimeError where there is no driver, or it refuses.
    """

def collector_api() -> int:
    """The address of those functions."""
