"""Backups: a step goes on without the slowest, all get the same sum, and it says who is not in it."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legato._native import Codec, Coding, Handle
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, Array, Mesh, eventually, finish, spread
from tests.engine.wire import PUSH, READY, SUM, WITHOUT, Header

NUM_WORKERS = 4
MAX_BEHIND = 4
NUM_ROWS = 800
tensors = itertools.count()


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """Four workers, of which two serve, and a server; workers 0 and 1 share a host."""
    with Mesh(NUM_WORKERS, 1, chunk_bytes=1024, hosts=[0, 0, 1, 2, 3], heartbeat_s=1.0) as mesh:
        yield mesh


def tensor_with(mesh: Mesh, backups: int, dtype: str = "float32") -> int:
    tensor = next(tensors)
    num_bytes = NUM_ROWS * NUM_WORKERS * np.dtype(dtype).itemsize
    mesh.declare(tensor, num_bytes, dtype, spread(num_bytes, 4096, [0, 2, 4]), backups=backups)
    return tensor


class Worker:
    """One worker. In step t it adds t + 1 to its own column, so a sum tells whose contributions it holds."""

    def __init__(self, mesh: Mesh, tensor: int, rank: int) -> None:
        self._mesh = mesh
        self._tensor = tensor
        self.rank = rank
        self.array = np.zeros((NUM_ROWS, NUM_WORKERS), np.float32)
        self.handle: Handle | None = None
        self.num_steps = 0

    def contribute(self) -> None:
        self.array[:] = 0
        self.array[:, self.rank] = self.num_steps + 1
        self.handle = submit(self._mesh, self._tensor, self.num_steps, self.rank, self.array)
        self.num_steps += 1

    def answer(self) -> tuple[Array, list[int]]:
        assert self.handle is not None
        finish([self.handle])
        without = self.handle.without
        self.handle = None
        return self.array.copy(), without


def submit(mesh: Mesh, tensor: int, step: int, rank: int, array: Array, **more: object) -> Handle:
    address = array.ctypes.data
    return mesh.workers[rank].submit(
        tensor=tensor,
        step=step,
        rank=0,
        source=address,
        destination=address,
        num_bytes=array.nbytes,
        **more,  # type: ignore[arg-type]
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(backups=st.integers(1, 2), moves=st.lists(st.integers(0, NUM_WORKERS - 1), max_size=50))
def test_any_speeds(mesh: Mesh, backups: int, moves: list[int]) -> None:
    """Whoever is named moves next, unless it waits for an answer: any speeds of any workers."""
    tensor = tensor_with(mesh, backups)
    workers = [Worker(mesh, tensor, rank) for rank in range(NUM_WORKERS)]
    sums: dict[int, tuple[Array, list[int]]] = {}
    closed = 0

    def collect() -> None:
        nonlocal closed
        while True:
            come = sum(worker.num_steps > closed for worker in workers)
            if come < NUM_WORKERS - backups or min(worker.num_steps for worker in workers) < closed + 1 - MAX_BEHIND:
                break
            closed += 1
        for worker in workers:
            if worker.handle is not None and worker.num_steps <= closed:
                array, without = worker.answer()
                step = worker.num_steps - 1
                kept, others = sums.setdefault(step, (array, without))
                np.testing.assert_array_equal(array, kept)
                assert without == others

    for rank in moves:
        if workers[rank].handle is None:
            workers[rank].contribute()
            collect()
    assert not any(worker.handle is not None and worker.handle.poll() for worker in workers)
    while min(worker.num_steps for worker in workers) < max(worker.num_steps for worker in workers):
        min((worker for worker in workers if worker.handle is None), key=lambda worker: worker.num_steps).contribute()
        collect()
    assert all(worker.handle is None for worker in workers)
    for step, (array, without) in sums.items():
        assert set(np.unique(array)) <= {0.0, float(step + 1)}
        present = array != 0
        assert (present.sum(1) >= NUM_WORKERS - backups).all()
        assert without == np.flatnonzero(~present.all(0)).tolist()
    eventually(lambda: sum(engine.statistics()["slots"] for engine in mesh.engines) == 0, "nothing is kept")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("reduction", ["sum", "average", "max"])
def test_the_average_is_of_those_who_came(mesh: Mesh, dtype: str, reduction: str) -> None:
    tensor = tensor_with(mesh, 1, dtype)
    random = np.random.default_rng(0)
    given = [(100 * random.standard_normal(NUM_ROWS * NUM_WORKERS)).astype(dtype) for _ in range(NUM_WORKERS)]
    wide = [array.astype("float32") if dtype == "float16" else array for array in given]
    combine = np.maximum if reduction == "max" else np.add
    expected = combine(combine(wide[0], wide[1]), wide[3])  # in the order of ranks
    if reduction == "average":
        expected = np.trunc(expected / 3) if dtype == "int64" else expected / np.float32(3)
    arrays = [array.copy() for array in given]
    early = [submit(mesh, tensor, 0, rank, arrays[rank], reduction=reduction) for rank in (3, 0, 1)]
    finish(early)
    late = submit(mesh, tensor, 0, 2, arrays[2], reduction=reduction)
    finish([late])
    assert [handle.without for handle in (*early, late)] == [[2]] * 4
    for array in arrays:
        np.testing.assert_array_equal(array, expected.astype(dtype))


def test_who_has_nothing_to_add_has_come(mesh: Mesh) -> None:
    tensor = tensor_with(mesh, 1)
    arrays = [np.full(NUM_ROWS * NUM_WORKERS, 6, np.float32) for _ in range(NUM_WORKERS)]
    handles = [submit(mesh, tensor, 0, r, arrays[r], reduction="average", absent=r == 1) for r in (0, 1, 2)]
    finish(handles)
    assert (arrays[1] == 4).all()
    finish([submit(mesh, tensor, 0, 3, arrays[3], reduction="average")])
    handles = [submit(mesh, tensor, 1, rank, arrays[rank], reduction="average", absent=True) for rank in (0, 1, 2)]
    finish(handles)
    handles.append(submit(mesh, tensor, 1, 3, arrays[3], reduction="average"))
    finish(handles)
    assert all(handle.empty for handle in handles), "nobody who came in time had anything"


def test_who_is_too_far_behind_is_waited_for_and_named(mesh: Mesh) -> None:
    tensor = tensor_with(mesh, 1)
    *others, slow = [Worker(mesh, tensor, rank) for rank in range(NUM_WORKERS)]
    for _ in range(MAX_BEHIND):
        for worker in others:
            worker.contribute()
        assert [worker.answer()[1] for worker in others] == [[3]] * 3
    for worker in others:
        worker.contribute()
    waiting = [worker.handle for worker in others]
    eventually(lambda: all(handle is not None and handle.missing == [3] for handle in waiting), "told who is missing")
    for step in range(MAX_BEHIND + 1):
        slow.contribute()
        array, without = slow.answer()
        assert without == [3]
        assert (array[:, :3] == step + 1).all()
        assert not array[:, 3].any()
    for worker in others:
        worker.answer()


def header(kind: int, **more: int) -> Header:
    return Header(kind=kind, part_length=64, **more)


@pytest.mark.parametrize(
    ("frame", "payload", "why"),
    [
        (header(WITHOUT, tensor=1), b"\1\0\0\0", "an answer that nothing here waits for"),
        (header(WITHOUT), b"\1\0\0\0", "an answer from a member that does not serve the part"),
        (header(WITHOUT, tensor=1), b"\1\0", "a list of workers that is cut off"),
    ],
)
def test_word_of_who_is_left_out_comes_from_the_server_of_a_sum(frame: Header, payload: bytes, why: str) -> None:
    with Lone(num_workers=3, num_members=3, chunk_bytes=4096) as lone:
        for tensor in (0, 1):  # the other one is served by the peer
            lone.engine.declare(tensor, f"tensor{tensor}", 64, "float32", None, None, 1)
            lone.engine.lay_out(tensor, 0, [(0, 64, tensor, EVERYONE, EVERYONE)])
        lone.peers[1].send(frame, payload)
        eventually(lambda: lone.engine.failure is not None, "the engine fails")
        assert lone.engine.failure is not None
        assert why in lone.engine.failure.message


def test_the_wire() -> None:
    """The words of a server to a worker in time and to one that is late."""
    with Lone(num_workers=3, num_members=4, member=3, chunk_bytes=4096) as lone:
        lone.engine.declare(0, "tensor", 64, "float32", None, None, 1)
        lone.engine.lay_out(0, 0, [(0, 64, 3, EVERYONE, EVERYONE)])
        ones = np.ones(16, np.float32)
        lone.peers[0].send(header(PUSH), ones.tobytes())
        lone.peers[2].send(header(READY))
        for rank in (0, 2):
            frames = [lone.peers[rank].receive() for _ in range(2)]
            assert [frame.header.kind for frame in frames] == [WITHOUT, SUM]
            assert frames[0].payload == np.array([1], np.int32).tobytes()
        lone.peers[1].send(header(PUSH), (5 * ones).tobytes())
        frames = [lone.peers[1].receive() for _ in range(2)]
        assert [frame.header.kind for frame in frames] == [WITHOUT, SUM]
        assert frames[1].payload == ones.tobytes()
        lone.peers[1].send(replace(header(PUSH), step=0), ones.tobytes())
        eventually(lambda: lone.engine.failure is not None, "a second contribution")


def test_what_cannot_have_backups() -> None:
    with Mesh(2) as mesh:
        coding = Coding(push=Codec.fp16(), pull=Codec.fp16())
        for more in ({"backups": 2}, {"backups": -1}, {"backups": 1, "staleness": 1}, {"backups": 1, "coding": coding}):
            with pytest.raises(ValueError, match="backups are fewer than workers, without codec or staleness"):
                mesh.declare(0, 16, "float32", [], **more)
        with pytest.raises(ValueError, match="so everybody must write and read it"):
            mesh.declare(0, 16, "float32", [(0, 16, 0, 1, EVERYONE)], backups=1)
