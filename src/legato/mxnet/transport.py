"""The kvstore transport: parts move as pushes and pulls of MXNet's distributed KVStore.

Note: what becomes of a part. Servers answer a push when every worker has pushed, so its answer says nothing of this
worker's link, and a credit that waited for it would let workers wait for each other. A token says it: one element on
the same server, pulled behind the push on the same connection, comes back as soon as the push has got there.

    worker    push ──────────────► pull token ─►                              pull ─►
                                              ◄─ token: Sent                          ◄─ sum: Finished
    server         bytes arrive ────────────────►   … every worker has pushed: sum ─►

Each part has an array of its own over its piece of the bucket's memory: arrays cut from one array would share its
variable on the engine, and their pushes and pulls would wait for each other.
"""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.scheduler import Finished, Sent
from legato.core.task import Tensor
from legato.errors import ClosedError, InputError, JobError, PlanError
from legato.mxnet import engine_ops
from legato.mxnet.agreement import Agreement
from legato.mxnet.keys import key_space
from legato.transports.base import bucket_declaration, check_stages
from legato.transports.buffer import Array, Buffer, numpy_dtype
from legato.transports.declaration import Declaration

PUSH_PRIORITY = 1 << 20
"""On MXNet's engine: before any computation. Among themselves parts have the order in which they are started."""
_TOKEN_PRIORITY = PUSH_PRIORITY - 1
"""Behind the push that it follows."""

PROBE_ELEMENTS = 1 << 20
"""Of float32, to see what a link carries: 67 ms at 1 Gbit/s."""
PROBES = 4
"""The shortest counts: connections that begin lose packets, and wait 200 ms before they send them again."""

DTYPES = ("float32", "float64", "float16")

_Range = tuple[tuple[int, ...], int, int]
"""(tensors of the bucket, offset, length): the same range has the same key in every plan."""


@dataclass(slots=True)
class _Shelf:
    """Where a range is kept on the servers."""

    key: int
    tokens: list[tuple[int, Any]]
    """A key and an array of one element for each of its servers."""
    address: int = -1
    array: Any = None
    """The range's piece of the memory that was offered last, which is at that address."""


@dataclass(slots=True)
class _Offer:
    memory: tuple[Buffer, Buffer] | None
    """Source and destination; None where the bucket is left out."""
    unfinished_bytes: int
    """Of the last stage."""


class KVStoreTransport:
    """One worker's end of a `dist_sync` KVStore."""

    stages = frozenset(Stage)
    reports_sent = True

    def __init__(self, kv: Any, *, num_servers: int, spread_elements: int, timeout_s: float = 60.0) -> None:
        self.rank: int = kv.rank
        self.size: int = kv.num_workers
        self._kv = kv
        self._keys = key_space(kv, num_servers, spread_elements)
        self._agreement = Agreement(kv, self._keys.key_on(0), timeout_s)
        self._changed = threading.Condition()
        self._tensors: list[Declaration] = []
        self._initial: dict[int, Array] = {}
        self._shelves: dict[_Range, _Shelf] = {}
        self._plans: list[tuple[int, Plan]] = []
        self._latest_step = -1
        self._offers: dict[tuple[int, int], _Offer] = {}
        self._awaited_tokens: dict[Part, int] = {}
        """Of each part in flight; 0 when it has been reported as sent."""
        self._events: list[Sent | Finished] = []
        self._error: JobError | None = None

    # ---- agreement: collective, while nothing is in flight and no optimizer runs on the servers ----

    def declare(self, tensors: Sequence[Declaration], initial: Sequence[Array] = ()) -> None:
        """`initial`, flat: what the servers keep before the first push; rank 0's counts. Zeros if not given."""
        self._check_open()
        for each in tensors:
            if each.dtype not in DTYPES:
                raise InputError(
                    f"tensor {each.name!r} is {each.dtype}; a KVStore's servers sum {', '.join(DTYPES)} only"
                )
        self._agreement.on_tensors(tensors)
        self._initial.update(enumerate(initial, len(self._tensors)))
        self._tensors += tensors

    def set_plan(self, plan: Plan, from_step: int) -> None:
        self._check_open()
        check_stages(self, plan)
        self._agreement.on_plan(plan, from_step, self._latest_step)
        tensors = [
            Tensor(name=each.name, num_bytes=each.num_bytes, priority=0, item_bytes=each.item_bytes)
            for each in self._tensors
        ]
        plan.check(tensors)
        for bucket, ranges in zip(plan.buckets, plan.parts(tensors), strict=True):
            self._make_room(bucket, ranges)
        earlier = [entry for entry in self._plans if entry[0] < from_step]
        self._plans = [*earlier[-1:], (from_step, plan)]

    def link_bytes_per_s(self, *, asked: bool) -> float | None:
        """What the slowest worker's link carries each way, where any worker asks: arrays to every server and back."""
        if not self._agreement.by_any(asked):
            return None
        servers = range(self._keys.num_servers)
        arrays = {self._keys.key_on(server): mx.nd.zeros((PROBE_ELEMENTS // len(servers),)) for server in servers}
        self._kv.init(list(arrays), list(arrays.values()))
        shortest_s = math.inf
        for _ in range(PROBES):
            begin_s = time.monotonic()
            for key, array in arrays.items():
                self._kv.push(key, array)
                self._kv.pull(key, out=array)
            self._agreement.await_all(list(arrays.values()))
            shortest_s = min(time.monotonic() - begin_s, shortest_s)
        num_bytes = sum(array.size for array in arrays.values()) * 4
        return self._agreement.smallest(2 * num_bytes / shortest_s)

    def keys_of(self, tensor: int) -> list[int]:
        """The keys under which the parts of a tensor are kept; those of buckets with others are not among them."""
        return [shelf.key for (tensors, _, _), shelf in self._shelves.items() if tensors == (tensor,)]

    def fetch(self, tensor: int, destination: Array) -> None:
        """Wait for what the servers keep of a tensor before its first push."""
        buffer = Buffer.of(destination, self._tensors[tensor].name)
        arrays = []
        for (tensors, offset, length), shelf in self._shelves.items():
            if tensors == (tensor,):
                array = _piece(buffer, offset, length)
                self._kv.pull(shelf.key, out=array)
                arrays.append(array)
        for array in arrays:
            array.wait_to_read()

    def _make_room(self, bucket: tuple[int, ...], ranges: Sequence[tuple[int, int]]) -> None:
        """Initialise the keys of ranges that have none yet."""
        declaration = bucket_declaration([self._tensors[index] for index in bucket])
        dtype, item_bytes = numpy_dtype(declaration.dtype), declaration.item_bytes
        keys: list[int] = []
        values: list[Any] = []
        for offset, length in ranges:
            if not length or (bucket, offset, length) in self._shelves:
                continue
            initial = self._initial.get(bucket[0]) if len(bucket) == 1 else None
            piece = slice(offset // item_bytes, (offset + length) // item_bytes)
            values.append(_array(np.zeros(length // item_bytes, dtype) if initial is None else initial[piece]))
            place = self._keys.place(length // item_bytes, length)
            tokens = [(self._keys.key_on(server), mx.nd.zeros((1,))) for server in place.servers]
            values += [token for _, token in tokens]
            keys += [place.key, *(key for key, _ in tokens)]
            self._shelves[bucket, offset, length] = _Shelf(place.key, tokens)
        if keys:
            self._kv.init(keys, values)

    # ---- parts ----

    def offer(self, step: int, bucket: int, source: Buffer, destination: Buffer, *, reduction: str = "sum") -> None:
        if reduction != "sum":
            raise InputError(f"reduction is {reduction!r}; a KVStore's servers only sum, accepted is 'sum'")
        if not any(from_step <= step for from_step, _ in self._plans):
            raise PlanError(f"step {step} has no plan; call set_plan first")
        self._add(step, bucket, (source, destination))

    def leave_out(self, step: int, bucket: int) -> None:
        """Instead of an offer, on every rank: the parts of the bucket finish at once, and nothing moves."""
        self._add(step, bucket, None)

    def _add(self, step: int, bucket: int, memory: tuple[Buffer, Buffer] | None) -> None:
        num_bytes = sum(self._tensors[index].num_bytes for index in self._plan_at(step).buckets[bucket])
        with self._changed:
            self._check_open()
            self._latest_step = max(self._latest_step, step)
            self._offers[step, bucket] = _Offer(memory, num_bytes)

    def start(self, part: Part) -> None:
        with self._changed:
            self._check_open()
            offer = self._offers.get((part.step, part.bucket))
            if offer is None:
                raise InputError(f"{part} cannot start: its bucket has not been offered")
            if part in self._awaited_tokens:
                raise InputError(f"{part} has been started before on rank {self.rank}")
            if offer.memory is None or not part.length:
                self._awaited_tokens[part] = 1
                self._land(part)
                return
            tensors = self._plan_at(part.step).buckets[part.bucket]
            shelf = self._shelves[tensors, part.offset, part.length]
            self._issue(part, shelf, self._array_of(part, shelf, *offer.memory))

    def _issue(self, part: Part, shelf: _Shelf, array: Any) -> None:
        self._awaited_tokens[part] = len(shelf.tokens)
        landed = partial(self._landed, part)
        if part.stage is not Stage.ALL_GATHER:
            self._kv.push(shelf.key, array, priority=PUSH_PRIORITY)
            for key, token in shelf.tokens:
                self._kv.pull(key, out=token, priority=_TOKEN_PRIORITY)
                engine_ops.when_readable([token], partial(self._token_returned, part), name="legato sent")
        if part.stage is Stage.REDUCE_SCATTER:
            engine_ops.when_writable([array], landed, name="legato pushed")
            return
        self._kv.pull(shelf.key, out=array, priority=PUSH_PRIORITY)
        engine_ops.when_readable([array], landed, name="legato pulled")

    def events(self, timeout_s: float) -> list[Sent | Finished]:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._events) or self._error is not None, timeout_s)
            events, self._events = self._events, []
            if not events:
                self._check_open()
            return events

    def close(self) -> None:
        with self._changed:
            self._error = ClosedError("the transport is closed; make a new one to go on", rank=self.rank)
            self._offers.clear()
            self._changed.notify_all()

    # ---- on the engine's threads ----

    def _token_returned(self, part: Part) -> None:
        with self._changed:
            awaited = self._awaited_tokens.get(part, 0)
            if awaited == 0:
                return  # its sum was here before
            self._awaited_tokens[part] = awaited - 1
            if awaited == 1:
                self._events.append(Sent(part))
                self._changed.notify_all()

    def _landed(self, part: Part) -> None:
        with self._changed:
            self._land(part)

    # ---- with the lock held ----

    def _land(self, part: Part) -> None:
        if self._awaited_tokens.pop(part):
            self._events.append(Sent(part))
        self._events.append(Finished(part))
        self._settle(part)
        self._changed.notify_all()

    def _settle(self, part: Part) -> None:
        """Forget the memory of a bucket whose last stage has finished."""
        offer = self._offers.get((part.step, part.bucket))
        if offer is not None and part.stage is self._plan_at(part.step).stages[-1]:
            offer.unfinished_bytes -= part.length
            if offer.unfinished_bytes == 0:
                del self._offers[part.step, part.bucket]

    def _array_of(self, part: Part, shelf: _Shelf, source: Buffer, destination: Buffer) -> Any:
        """The part's array; a source that must stay as it is has been copied there."""
        address = destination.address + part.offset
        if shelf.address != address:
            shelf.array, shelf.address = _piece(destination, part.offset, part.length), address
        if source.address != destination.address and part.stage is not Stage.ALL_GATHER:
            _piece(source, part.offset, part.length).copyto(shelf.array)
        return shelf.array

    def _plan_at(self, step: int) -> Plan:
        return next(plan for from_step, plan in reversed(self._plans) if from_step <= step)

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error


def _piece(buffer: Buffer, offset: int, length: int) -> Any:
    item_bytes = numpy_dtype(buffer.dtype).itemsize
    return _array(buffer.array().reshape(-1)[offset // item_bytes : (offset + length) // item_bytes])


def _array(memory: Array) -> Any:
    """An array of MXNet's over memory of numpy's, with a variable of its own on the engine."""
    return mx.nd.from_numpy(memory[:])
