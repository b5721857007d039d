"""What every transport must do. A test file subclasses `TransportContract` and says how its ranks come to be:

class TestMemory(TransportContract):
    def transports(self, size: int) -> Callable[[int], Transport]:
        hub = MemoryHub(size, timeout_s=5.0)
        return hub.transport
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from legato.core.fusion import Buckets
from legato.core.part import Part, Stage, split
from legato.core.plan import Plan
from legato.core.policies import Fifo, ReduceScatterAllGather
from legato.core.policy import Policy
from legato.core.scheduler import Finished, Sent
from legato.core.task import Tensor
from legato.errors import ClosedError, LegatoError, MismatchError, PlanError
from legato.testing.ranks import run_ranks
from legato.transports.base import Transport
from legato.transports.buffer import Array, Buffer
from legato.transports.declaration import Declaration

Body = Callable[[Transport], None]

SIZES = (0, 1, 5, 4096, 100_003)
DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")


class TransportContract:
    """The suite. Values are small integers, so that every order of summation gives the same bits."""

    def transports(self, size: int) -> Callable[[int], Transport]:
        """A function that makes the transport of a rank; it is called in a thread of that rank."""
        raise NotImplementedError

    def run(self, size: int, body: Body) -> None:
        """`body` on every rank, each with its own transport, closed at the end."""
        make = self.transports(size)

        def on_rank(rank: int) -> None:
            transport = make(rank)
            try:
                body(transport)
            finally:
                transport.close()

        run_ranks(size, on_rank)

    def test_sums_are_exact(self) -> None:
        for size in (1, 2, 4):
            self.run(size, _sum_every_dtype_and_size)

    def test_ranks_may_start_parts_in_different_orders(self) -> None:
        def body(transport: Transport) -> None:
            tensors = _declare(transport, [f"t{index}" for index in range(5)], 3000)
            _follow(transport, tensors, partition_bytes=512)
            arrays = [_values(transport.rank, tensor.name, 750, "float32") for tensor in tensors]
            for bucket, array in enumerate(arrays):
                _offer(transport, 0, bucket, array)
            parts = [part for bucket in range(5) for part in _parts(0, bucket, 3000, 512)]
            random.Random(transport.rank).shuffle(parts)
            _move(transport, parts)
            for tensor, array in zip(tensors, arrays, strict=True):
                _check_sum(transport.size, tensor.name, array)

        self.run(3, body)

    def test_a_part_finishes_once_and_only_when_every_rank_has_started_it(self) -> None:
        looked = threading.Event()

        def body(transport: Transport) -> None:
            tensors = _declare(transport, ["early", "late"], 64)
            _follow(transport, tensors, partition_bytes=64)
            arrays = [np.ones(16, np.float32), np.ones(16, np.float32)]
            for bucket, array in enumerate(arrays):
                _offer(transport, 0, bucket, array)
            early, late = Part(0, 0, Stage.SYNC, 0, 64), Part(0, 1, Stage.SYNC, 0, 64)
            if transport.rank == 0:
                transport.start(early)
                assert _finished(transport, 0.05) == []
                looked.set()
            else:
                assert looked.wait(10.0)
                transport.start(early)
            assert _finished(transport, 10.0) == [early]
            transport.start(late)
            assert _finished(transport, 10.0) == [late]
            assert _finished(transport, 0.0) == []

        self.run(2, body)

    def test_a_part_is_sent_before_it_finishes_where_the_transport_can_tell(self) -> None:
        def body(transport: Transport) -> None:
            _follow(transport, _declare(transport, ["t"], 64), partition_bytes=32)
            _offer(transport, 0, 0, np.ones(16, np.float32))
            parts = _parts(0, 0, 64, 32)
            for part in parts:
                transport.start(part)
            events: list[Sent | Finished] = []
            while sum(isinstance(event, Finished) for event in events) < len(parts):
                heard = transport.events(10.0)
                assert heard, f"rank {transport.rank} has heard only {events}"
                events += heard
            for part in parts:
                kinds = [type(event) for event in events if event.part == part]
                assert kinds == ([Sent, Finished] if transport.reports_sent else [Finished])

        self.run(2, body)

    def test_reductions(self) -> None:
        expected = {"sum": 6.0, "average": 3.0, "min": 2.0, "max": 4.0, "product": 8.0}

        def body(transport: Transport) -> None:
            tensors = _declare(transport, list(expected), 16)
            _follow(transport, tensors, partition_bytes=None)
            for bucket, (reduction, result) in enumerate(expected.items()):
                array = np.full(4, 2.0 + 2.0 * transport.rank, np.float32)
                _offer(transport, 0, bucket, array, reduction=reduction)
                _move(transport, [Part(0, bucket, Stage.SYNC, 0, 16)])
                assert array.tolist() == [result] * 4

        self.run(2, body)

    def test_results_go_to_the_destination(self) -> None:
        def body(transport: Transport) -> None:
            _follow(transport, _declare(transport, ["t"], 16), partition_bytes=8)
            source, destination = np.full(4, 3, np.float32), np.zeros(4, np.float32)
            transport.offer(0, 0, Buffer.of(source, "t"), Buffer.of(destination, "t"))
            _move(transport, _parts(0, 0, 16, 8))
            assert source.tolist() == [3.0] * 4
            assert destination.tolist() == [6.0] * 4

        self.run(2, body)

    def test_a_plan_changes_while_steps_run(self) -> None:
        def body(transport: Transport) -> None:
            tensors = _declare(transport, ["a", "b"], 4000)
            partition = {0: 1000, 2: 256, 4: None, 5: 100}
            current: int | None = None
            for step in range(7):
                if step in partition:
                    current = partition[step]
                    _follow(transport, tensors, partition_bytes=current, from_step=step)
                arrays = [_values(transport.rank, f"{tensor.name}{step}", 1000, "float32") for tensor in tensors]
                for bucket, array in enumerate(arrays):
                    _offer(transport, step, bucket, array)
                _move(transport, [part for bucket in (0, 1) for part in _parts(step, bucket, 4000, current)])
                for tensor, array in zip(tensors, arrays, strict=True):
                    _check_sum(transport.size, f"{tensor.name}{step}", array)

        self.run(3, body)

    def test_buckets_of_several_tensors(self) -> None:
        def body(transport: Transport) -> None:
            tensors = _declare(transport, ["a", "b", "c"], 400)
            transport.set_plan(_plan(tensors, partition_bytes=300, buckets=((1, 2), (0,))), 0)
            flat = _values(transport.rank, "flat", 200, "float32")
            _offer(transport, 0, 0, flat)
            _move(transport, _parts(0, 0, 800, 300))
            _check_sum(transport.size, "flat", flat)

        self.run(2, body)

    def test_a_mismatch_is_an_error_on_every_rank(self) -> None:
        def body(transport: Transport) -> None:
            shape = (3, 4) if transport.rank == 0 else (4, 3)
            error = _error_of(
                lambda: transport.declare([Declaration(name="w", shape=shape, dtype="float32")]), MismatchError
            )
            assert "'w'" in error, error
            assert "rank 0" in error, error
            assert "(3, 4)" in error, error
            assert "(4, 3)" in error, error

        self.run(3, body)

    def test_different_plans_are_an_error_on_every_rank(self) -> None:
        def body(transport: Transport) -> None:
            tensors = _declare(transport, ["t"], 16)
            plan = _plan(tensors, partition_bytes=4 if transport.rank == 0 else 8)
            _error_of(lambda: transport.set_plan(plan, 0), MismatchError)

        self.run(2, body)

    def test_a_plan_for_a_step_that_has_begun_is_refused(self) -> None:
        def body(transport: Transport) -> None:
            tensors = _declare(transport, ["t"], 16)
            _follow(transport, tensors, partition_bytes=None)
            array = np.ones(4, np.float32)
            _offer(transport, 3, 0, array)
            _move(transport, _parts(3, 0, 16, None))
            error = _error_of(lambda: _follow(transport, tensors, partition_bytes=8, from_step=3), PlanError)
            assert "has begun step 3" in error, error
            _offer(transport, 4, 0, array)
            _move(transport, _parts(4, 0, 16, None))
            assert array.tolist() == [4.0] * 4

        self.run(2, body)

    def test_a_policy_with_unknown_stages_is_refused(self) -> None:
        def body(transport: Transport) -> None:
            plan = _plan(_declare(transport, ["t"], 16), None, policy=ReduceScatterAllGather())
            if set(plan.stages) <= transport.stages:
                transport.set_plan(plan, 0)
            else:
                _error_of(lambda: transport.set_plan(plan, 0), PlanError)

        self.run(2, body)

    def test_closing_is_final_and_can_be_repeated(self) -> None:
        def body(transport: Transport) -> None:
            transport.close()
            transport.close()
            _error_of(lambda: transport.events(1.0), ClosedError)
            _error_of(lambda: transport.declare([]), ClosedError)

        self.run(2, body)


def _sum_every_dtype_and_size(transport: Transport) -> None:
    names = [(f"{dtype}-{length}", length, dtype) for dtype in DTYPES for length in SIZES]
    declarations = [Declaration(name=name, shape=(length,), dtype=dtype) for name, length, dtype in names]
    transport.declare(declarations)
    _follow(transport, declarations, partition_bytes=4096)
    arrays = [_values(transport.rank, name, length, dtype) for name, length, dtype in names]
    for bucket, array in enumerate(arrays):
        _offer(transport, 0, bucket, array)
    _move(
        transport,
        [part for bucket, array in enumerate(arrays) for part in _parts(0, bucket, array.nbytes, 4096, array.itemsize)],
    )
    for (name, _, _), array in zip(names, arrays, strict=True):
        _check_sum(transport.size, name, array)


def _declare(transport: Transport, names: Sequence[str], num_bytes: int) -> list[Declaration]:
    tensors = [Declaration(name=name, shape=(num_bytes // 4,), dtype="float32") for name in names]
    transport.declare(tensors)
    return tensors


def _plan(
    tensors: Sequence[Declaration],
    partition_bytes: int | None,
    *,
    policy: Policy | None = None,
    buckets: Buckets | None = None,
) -> Plan:
    known = [
        Tensor(name=tensor.name, num_bytes=tensor.num_bytes, priority=index, item_bytes=tensor.item_bytes)
        for index, tensor in enumerate(tensors)
    ]
    return (policy or Fifo()).plan(known, partition_bytes=partition_bytes, buckets=buckets)


def _follow(
    transport: Transport, tensors: Sequence[Declaration], *, partition_bytes: int | None, from_step: int = 0
) -> None:
    transport.set_plan(_plan(tensors, partition_bytes), from_step)


def _offer(transport: Transport, step: int, bucket: int, array: Array, reduction: str = "sum") -> None:
    buffer = Buffer.of(array, "t")
    transport.offer(step, bucket, buffer, buffer, reduction=reduction)


def _parts(step: int, bucket: int, num_bytes: int, partition_bytes: int | None, item_bytes: int = 4) -> list[Part]:
    ranges = split(num_bytes, partition_bytes, item_bytes)
    return [Part(step, bucket, Stage.SYNC, offset, length) for offset, length in ranges]


def _move(transport: Transport, parts: Sequence[Part]) -> None:
    """Start the parts and wait for them: each finishes exactly once."""
    for part in parts:
        transport.start(part)
    missing = Counter(parts)
    while missing:
        finished = _finished(transport, 20.0)
        assert finished, f"rank {transport.rank} still waits for {sorted(missing)[:5]}"
        for part in finished:
            assert missing[part] == 1, f"{part} finished, but was not under way"
            del missing[part]


def _finished(transport: Transport, timeout_s: float) -> list[Part]:
    """What finishes next: the first that does within that time, and what came with it."""
    until_s = time.monotonic() + timeout_s
    while True:
        events = transport.events(max(until_s - time.monotonic(), 0.0))
        finished = [event.part for event in events if isinstance(event, Finished)]
        if finished or not events:
            return finished


def _values(rank: int, name: str, length: int, dtype: str) -> Array:
    """Small integers that differ between ranks, names and places, and whose sums fit every dtype."""
    start = rank * 3 + sum(name.encode()) % 7
    return ((np.arange(length) + start) % 11).astype(dtype)


def _check_sum(size: int, name: str, array: Array) -> None:
    each = [_values(rank, name, array.size, array.dtype.name) for rank in range(size)]
    np.testing.assert_array_equal(array, np.add.reduce(each, axis=0), err_msg=name)


def _error_of(action: Callable[[], object], kind: type[LegatoError]) -> str:
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
