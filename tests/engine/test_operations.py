"""Broadcast, all-gather, reduce-scatter and all-to-all are layouts: who writes and who reads each part."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.engine.mesh import EVERYONE, Array, Mesh, finish
from tests.engine.numbers import contributions, reduced

NUM_WORKERS = 4
Served = tuple[Mesh, Callable[[int], int]]
BLOCK_ITEMS = 5_000
BLOCK = 4 * BLOCK_ITEMS


def block(array: Array, index: int) -> Array:
    return array[index * BLOCK_ITEMS : (index + 1) * BLOCK_ITEMS]


@pytest.fixture(params=["joint", "served elsewhere", "separate", "joint, through memory"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A mesh, and which member serves the block that a rank writes or reads."""
    servers: dict[str, Callable[[int], int]] = {
        "joint": lambda rank: rank,
        "served elsewhere": lambda rank: (rank + 1) % NUM_WORKERS,
        "separate": lambda rank: NUM_WORKERS + rank % 2,
        "joint, through memory": lambda rank: rank,
    }
    kind = "shared" if "memory" in request.param else "unix"
    with Mesh(NUM_WORKERS, 2, kind=kind, chunk_bytes=4096) as mesh:
        yield mesh, servers[request.param]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("root", [0, 3])
def test_broadcast(served: Served, root: int, dtype: str) -> None:
    mesh, server = served
    sources = contributions(dtype, BLOCK_ITEMS, NUM_WORKERS)
    num_bytes = sources[0].nbytes
    parts = [(at, min(4_096, num_bytes - at), server(at % 4), root, EVERYONE) for at in range(0, num_bytes, 4_096)]
    mesh.declare(0, num_bytes, dtype, parts)
    for step in range(2):
        for result in mesh.push_pull(0, step, sources, reduction="average"):
            np.testing.assert_array_equal(result, sources[root])


def test_broadcast_in_place(served: Served) -> None:
    mesh, server = served
    mesh.declare(0, BLOCK, "float32", [(0, BLOCK, server(1), 1, EVERYONE)])
    arrays = contributions("float32", BLOCK_ITEMS, NUM_WORKERS)
    expected = arrays[1].copy()
    finish(mesh.submit(0, 0, arrays, arrays))
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


def test_all_gather_of_uneven_parts(served: Served) -> None:
    mesh, server = served
    lengths = [400, 0, 8_000, 12]
    starts = [0, 400, 400, 8_400]
    parts = [
        (start, length, server(rank), rank, EVERYONE)
        for rank, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    mesh.declare(0, sum(lengths), "int32", parts)
    whole = np.arange(sum(lengths) // 4, dtype=np.int32)
    # Each worker has its own rows; elsewhere it holds what must not be read.
    sources = [np.full_like(whole, -1) for _ in range(NUM_WORKERS)]
    for source, start, length in zip(sources, starts, lengths, strict=True):
        source[start // 4 : (start + length) // 4] = whole[start // 4 : (start + length) // 4]
    for result in mesh.push_pull(0, 0, sources):
        np.testing.assert_array_equal(result, whole)


@pytest.mark.parametrize("dtype", ["int32", "float16"])
def test_reduce_scatter(served: Served, dtype: str) -> None:
    mesh, server = served
    sources = contributions(dtype, NUM_WORKERS * BLOCK_ITEMS, NUM_WORKERS)
    size = block(sources[0], 0).nbytes
    mesh.declare(
        0, NUM_WORKERS * size, dtype, [(rank * size, size, server(rank), EVERYONE, rank) for rank in range(NUM_WORKERS)]
    )
    expected = reduced(dtype, "sum", sources)
    for step in range(3):
        for rank, result in enumerate(mesh.push_pull(0, step, sources)):
            np.testing.assert_array_equal(block(result, rank), block(expected, rank))
            assert not np.any(np.delete(result.reshape(NUM_WORKERS, -1), rank, axis=0)), "wrote what it may not"


def test_all_to_all(served: Served) -> None:
    """Block i*n+j travels from i to j."""
    mesh, server = served
    count = NUM_WORKERS * NUM_WORKERS
    parts = [(index * BLOCK, BLOCK, server(index % 4), index // 4, index % 4) for index in range(count)]
    mesh.declare(0, count * BLOCK, "float32", parts)
    sources = contributions("float32", count * BLOCK_ITEMS, NUM_WORKERS)
    for receiver, result in enumerate(mesh.push_pull(0, 0, sources)):
        for sender in range(NUM_WORKERS):
            index = sender * NUM_WORKERS + receiver
            np.testing.assert_array_equal(block(result, index), block(sources[sender], index))


def test_a_tensor_without_parts_is_done_at_once() -> None:
    with Mesh(2) as mesh:
        mesh.declare(0, 0, "float32", [])
        empty = np.zeros(0, np.float32)
        assert all(handle.poll() for handle in mesh.submit(0, 0, [empty, empty], [empty, empty]))
