"""Running totals: everything is added once, and nobody gets further ahead than the staleness allows."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legato._native import LAST_STEP, Codec, Coding, Handle
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, Array, Mesh, eventually, finish, spread
from tests.engine.wire import PUSH, Header

NUM_WORKERS = 3
tensors = itertools.count()


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """Three workers, of which two serve, and a server; workers 0 and 1 share a host."""
    with Mesh(NUM_WORKERS, 1, chunk_bytes=1024, hosts=[0, 0, 1, 2]) as mesh:
        yield mesh


def total(mesh: Mesh, staleness: int, dtype: str = "float32", num_items: int = 3 * 1000) -> int:
    """A new tensor."""
    tensor = next(tensors)
    num_bytes = num_items * np.dtype(dtype).itemsize
    mesh.declare(tensor, num_bytes, dtype, spread(num_bytes, 4096, [0, 2, 3]), staleness=staleness)
    return tensor


class Worker:
    """One worker of a total. Each of its contributions adds 1 to every third item, so an answer tells how many
    contributions of each worker it holds."""

    def __init__(self, mesh: Mesh, tensor: int, rank: int) -> None:
        self._mesh = mesh
        self._tensor = tensor
        self._rank = rank
        self._array = np.zeros((1000, 3), np.float32)
        self._handle: Handle | None = None
        self.num_steps = 0

    def contribute(self, step: int | None = None) -> None:
        self._array[:] = np.eye(3, dtype=np.float32)[self._rank]
        address = self._array.ctypes.data
        self._handle = self._mesh.workers[self._rank].submit(
            tensor=self._tensor,
            step=self.num_steps if step is None else step,
            rank=0,
            source=address,
            destination=address,
            num_bytes=self._array.nbytes,
        )
        self.num_steps += 1

    @property
    def is_waiting(self) -> bool:
        return self._handle is not None

    def is_answered(self) -> bool:
        return self._handle is not None and self._handle.poll()

    @property
    def handle(self) -> Handle:
        assert self._handle is not None
        return self._handle

    def answer(self) -> tuple[Array, Array]:
        """The least and the most contributions of each worker in any part."""
        finish([self.handle])
        self._handle = None
        return self._array.min(0), self._array.max(0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(staleness=st.integers(0, 4), moves=st.lists(st.integers(0, NUM_WORKERS - 1), max_size=40))
def test_nobody_is_further_ahead_than_the_staleness(mesh: Mesh, staleness: int, moves: list[int]) -> None:
    """Whoever is named moves next, unless it waits: any speeds of any workers, one after another."""
    tensor = total(mesh, staleness)
    workers = [Worker(mesh, tensor, rank) for rank in range(NUM_WORKERS)]

    def is_due(worker: Worker) -> bool:
        return worker.is_waiting and min(each.num_steps for each in workers) >= worker.num_steps - staleness

    def collect() -> None:
        """Take the answers that must come, and see that no other does."""
        for worker in workers:
            if is_due(worker):
                least, most = worker.answer()
                assert (least >= worker.num_steps - staleness).all()
                assert (most <= [each.num_steps for each in workers]).all()
                rank = workers.index(worker)
                assert least[rank] == most[rank] == worker.num_steps
            assert not worker.is_answered()

    for rank in moves:
        if not workers[rank].is_waiting:
            workers[rank].contribute()
            collect()
    # Frames keep their order, so whatever could have been answered by now has been when this is over.
    fence = [np.zeros(64, np.float32) for _ in workers]
    number = next(tensors)
    mesh.declare(number, 256, "float32", spread(256, 64, [0, 1, 2, 3]))
    mesh.push_pull(number, 0, fence, rank=9)
    assert not any(worker.is_answered() for worker in workers)
    while any(worker.is_waiting for worker in workers):
        min(workers, key=lambda worker: worker.num_steps).contribute()  # the slowest never waits
        collect()
    ends = [worker.num_steps + 1 for worker in workers]
    for worker in workers:
        worker.contribute(LAST_STEP)
    for worker in workers:
        least, most = worker.answer()
        assert least.tolist() == most.tolist() == ends


def test_nobody_waits_for_who_has_contributed_for_the_last_time(mesh: Mesh) -> None:
    tensor = total(mesh, 1)
    first, *others = [Worker(mesh, tensor, rank) for rank in range(NUM_WORKERS)]
    first.contribute(LAST_STEP)
    for _ in range(10):
        for worker in others:
            worker.contribute()
            worker.answer()
    assert not first.is_answered()
    for worker in others:
        worker.contribute(LAST_STEP)
    answers = [worker.answer() for worker in (first, *others)]
    assert all(least.tolist() == most.tolist() == [1, 11, 11] for least, most in answers)


def slots(mesh: Mesh) -> int:
    return sum(engine.statistics()["slots"] for engine in mesh.engines)


def test_a_total_ends_with_its_last_contributions(mesh: Mesh) -> None:
    eventually(lambda: slots(mesh) == 0, "earlier totals are over")
    tensor = total(mesh, 2)
    workers = [Worker(mesh, tensor, rank) for rank in range(NUM_WORKERS)]
    for worker in workers:
        worker.contribute()
        worker.answer()
    assert slots(mesh) == 3, "one for each part"
    for worker in workers:
        worker.contribute(LAST_STEP)
    for worker in workers:
        worker.answer()
    eventually(lambda: slots(mesh) == 0, "the total is over")


@pytest.mark.parametrize("reduction", ["sum", "average"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
def test_staleness_0_is_the_sum_of_all_steps(mesh: Mesh, dtype: str, reduction: str) -> None:
    """Bit for bit what adding up the synchronous sums gives, of whole numbers."""
    arrays = [np.arange(NUM_WORKERS * 1000).astype(dtype) % 7 * 3 + 3 * rank for rank in range(NUM_WORKERS)]
    tensor, step_by_step = total(mesh, 0, dtype), next(tensors)
    mesh.declare(step_by_step, arrays[0].nbytes, dtype, spread(arrays[0].nbytes, 4096, [0, 2, 3]))
    expected = np.zeros_like(arrays[0])
    for step in range(4):
        expected += mesh.push_pull(step_by_step, step, arrays, reduction=reduction)[0]
        for result in mesh.push_pull(tensor, step, arrays, reduction=reduction):
            np.testing.assert_array_equal(result, expected)


def test_a_total_of_small_types_is_not_rounded_on_its_way(mesh: Mesh) -> None:
    """2048 + 1 is 2048 in float16: added one by one to a float16, ones would be lost."""
    tensor = total(mesh, 0, "float16")
    many, one = np.full(3000, 1024, np.float16), np.ones(3000, np.float16)
    mesh.push_pull(tensor, 0, [many, many, np.zeros_like(one)])
    for step in range(1, 3):
        results = mesh.push_pull(tensor, step, [one, one, one])
    assert all((result == 2048 + 6).all() for result in results)


def test_the_absent_get_the_total_and_add_nothing(mesh: Mesh) -> None:
    tensor = total(mesh, 0)
    arrays = [np.full(3000, rank + 1, np.float32) for rank in range(NUM_WORKERS)]
    results = mesh.push_pull(tensor, 0, arrays, each=[{}, {"absent": True}, {}])
    assert all((result == 4).all() for result in results)


def test_who_is_waited_for_is_named() -> None:
    with Mesh(NUM_WORKERS, heartbeat_s=0.25) as mesh:
        tensor = next(tensors)
        mesh.declare(tensor, 12_000, "float32", spread(12_000, 12_000, [0]), staleness=0)
        workers = [Worker(mesh, tensor, rank) for rank in range(NUM_WORKERS)]
        for rank in (0, 1):
            workers[rank].contribute()
        for rank in (0, 1):
            eventually(lambda rank=rank: workers[rank].handle.missing == [2], "told who is missing")  # type: ignore[misc]
        mesh.engines[2].close()
        for rank in (0, 1):
            assert workers[rank].handle.wait(30)
            failure = workers[rank].handle.failure
            assert failure is not None
            assert (failure.kind, failure.rank) == ("peer_lost", 2)


def push(step: int, num_bytes: int = 4096, **more: int) -> Header:
    return Header(kind=PUSH, step=step, part_length=4096, payload_bytes=num_bytes, **more)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([push(0), push(1)], "a contribution before the answer to the last one"),
        ([push(3), push(3)], "a second contribution"),
        ([push(0, 64), push(1)], "a contribution that repeats or skips bytes"),
        ([push(0, 64, chunk_offset=64)], "a contribution that repeats or skips bytes"),
        ([push(0, 64), push(0, 64, chunk_offset=64, reduction=1)], "different reductions"),
    ],
)
def test_a_peer_out_of_turn_is_cut_off(frames: Sequence[Header], why: str) -> None:
    with Lone(num_workers=2, chunk_bytes=4096) as lone:
        lone.engine.declare(0, "total", 4096, "float32", None, 0)
        lone.engine.lay_out(0, 0, [(0, 4096, 0, EVERYONE, EVERYONE)])
        for header in frames:
            lone.peers[1].send(header, bytes(header.payload_bytes))
        eventually(lambda: lone.engine.failure is not None, "the engine fails")
        assert lone.engine.failure is not None
        assert why in lone.engine.failure.message
        assert lone.engine.failure.rank == 1


def test_what_cannot_be_a_total() -> None:
    with Mesh(2) as mesh:
        coding = Coding(push=Codec.fp16(), pull=Codec.fp16())
        with pytest.raises(ValueError, match="a staleness of 0 or more, and no codec"):
            mesh.declare(0, 16, "float32", [], staleness=-1)
        with pytest.raises(ValueError, match="a staleness of 0 or more, and no codec"):
            mesh.declare(0, 16, "float32", [], coding, staleness=1)
        with pytest.raises(ValueError, match="so everybody must write and read it"):
            mesh.declare(0, 16, "float32", [(0, 16, 0, 1, EVERYONE)], staleness=1)
        mesh.declare(1, 16, "float32", [(0, 16, 0, EVERYONE, EVERYONE)], staleness=1)
        with pytest.raises(ValueError, match="it can be summed or averaged"):
            mesh.push_pull(1, 0, [np.zeros(4, np.float32)] * 2, reduction="max")
