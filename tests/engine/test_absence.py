"""Workers that have nothing to add: they get the sum of the others, and all are told when there is none."""

import numpy as np
import pytest

from tests.engine.mesh import Array, Mesh, finish, spread

NUM_WORKERS = 4
NUM_ITEMS = 5_000


def sources(dtype: str) -> list[Array]:
    return [np.arange(NUM_ITEMS).astype(dtype) % 50 + rank for rank in range(NUM_WORKERS)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("servers", [[0, 1, 2, 3], [4, 5], [0, 5]], ids=["joint", "separate", "mixed"])
@pytest.mark.parametrize("absent", [{0}, {1, 3}, {0, 1, 2}, {3}])
def test_the_others_are_summed(absent: set[int], servers: list[int], dtype: str) -> None:
    arrays = sources(dtype)
    expected = sum(array.astype("float64") for rank, array in enumerate(arrays) if rank not in absent)
    with Mesh(NUM_WORKERS, 2, chunk_bytes=1024) as mesh:
        mesh.declare(0, arrays[0].nbytes, dtype, spread(arrays[0].nbytes, 4096, servers))
        for step in range(3):
            results = [np.full_like(array, -1) for array in arrays]
            handles = mesh.submit(0, step, arrays, results, each=[{"absent": rank in absent} for rank in range(4)])
            finish(handles)
            assert not any(handle.empty for handle in handles)
            for result in results:
                np.testing.assert_array_equal(result.astype("float64"), expected)


def test_an_average_still_counts_the_absent() -> None:
    with Mesh(2) as mesh:
        mesh.declare(0, 16, "float32", spread(16, 16, [0]))
        arrays = [np.full(4, 6, "float32"), np.full(4, np.nan, "float32")]
        finish(mesh.submit(0, 0, arrays, arrays, reduction="average", each=[{}, {"absent": True}]))
        assert [array.tolist() for array in arrays] == [[3.0] * 4] * 2


@pytest.mark.parametrize("hosts", [None, [0, 1, 1]], ids=["each has its own", "a learner beside a worker"])
@pytest.mark.parametrize("server", [0, 1, 2], ids=["a worker", "another one", "the learner"])
def test_an_average_does_not_count_learners(server: int, hosts: list[int] | None) -> None:
    with Mesh(3, num_learners=1, hosts=hosts) as mesh:
        mesh.declare(0, 16, "float32", spread(16, 16, [server]))
        arrays = [np.full(4, value, "float32") for value in (6, 1, np.nan)]
        finish(mesh.submit(0, 0, arrays, arrays, reduction="average", each=[{}, {}, {"absent": True}]))
        assert [array.tolist() for array in arrays] == [[3.5] * 4] * 3


@pytest.mark.parametrize("servers", [[0, 1, 2, 3], [4, 5]], ids=["joint", "separate"])
def test_without_anybody_there_is_no_sum_and_nothing_is_touched(servers: list[int]) -> None:
    arrays = sources("float32")
    with Mesh(NUM_WORKERS, 2) as mesh:
        mesh.declare(0, arrays[0].nbytes, "float32", spread(arrays[0].nbytes, 4096, servers))
        for step in range(2):
            results = [np.full_like(array, -1) for array in arrays]
            handles = mesh.submit(0, step, arrays, results, each=[{"absent": True}] * NUM_WORKERS)
            finish(handles)
            assert all(handle.empty for handle in handles)
            assert all((result == -1).all() for result in results)


def test_a_parts_only_writer_cannot_be_absent() -> None:
    with Mesh(2) as mesh:
        mesh.declare(0, 16, "float32", [(0, 16, 0, 1, -1)])
        array = np.zeros(4, "float32")
        with pytest.raises(ValueError, match="its only writer cannot be absent"):
            mesh.submit(0, 0, [array, array], [array, array], each=[{}, {"absent": True}])
