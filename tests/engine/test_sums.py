"""Every sum is exact: all dtypes, reductions, sizes, numbers of members and layouts, in any order of submission."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.mesh import Mesh, finish, spread
from tests.engine.numbers import DTYPES, REDUCTIONS, contributions, item_bytes, reduced


@pytest.mark.parametrize("kind", ["unix", "shared"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_reduction(dtype: str, reduction: str, kind: str) -> None:
    num_items = 10_007
    num_bytes = num_items * item_bytes(dtype)
    with Mesh(3, kind=kind, chunk_bytes=4096) as mesh:
        mesh.declare(0, num_bytes, dtype, spread(num_bytes, 16_384, range(3)))
        sources = contributions(dtype, num_items, 3)
        for result in mesh.push_pull(0, 0, sources, reduction=reduction):
            np.testing.assert_array_equal(result, reduced(dtype, reduction, sources))


@pytest.mark.parametrize("num_workers", range(1, 9))
@pytest.mark.parametrize("num_items", [0, 1, 77, 16_384, 1_000_003])
def test_every_number_of_workers_and_size(num_workers: int, num_items: int) -> None:
    with Mesh(num_workers) as mesh:
        mesh.declare(0, 4 * num_items, "float32", spread(4 * num_items, 1 << 18, range(num_workers)))
        sources = contributions("float32", num_items, num_workers)
        for result in mesh.push_pull(0, 0, sources):
            np.testing.assert_array_equal(result, reduced("float32", "sum", sources))


@pytest.mark.parametrize(
    ("num_workers", "num_servers", "serving"),
    [
        pytest.param(3, 0, range(3), id="joint"),
        pytest.param(3, 2, range(3, 5), id="separate"),
        pytest.param(3, 2, range(5), id="mixed"),
        pytest.param(1, 1, range(1, 2), id="one worker, one server"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_every_deployment(num_workers: int, num_servers: int, serving: range, dtype: str) -> None:
    num_items = 100_001
    num_bytes = num_items * item_bytes(dtype)
    with Mesh(num_workers, num_servers, kind="tcp") as mesh:
        mesh.declare(0, num_bytes, dtype, spread(num_bytes, 32_768, serving))
        for step in range(3):
            sources = contributions(dtype, num_items, num_workers, seed=step)
            for result in mesh.push_pull(0, step, sources):
                np.testing.assert_array_equal(result, reduced(dtype, "sum", sources))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place(dtype: str) -> None:
    num_items = 50_000
    num_bytes = num_items * item_bytes(dtype)
    with Mesh(4) as mesh:
        mesh.declare(0, num_bytes, dtype, spread(num_bytes, 10_000, range(4)))
        arrays = contributions(dtype, num_items, 4)
        expected = reduced(dtype, "average", arrays)
        finish(mesh.submit(0, 0, arrays, arrays, reduction="average"))
        for array in arrays:
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("num_io_threads", [1, 3])
@pytest.mark.parametrize("num_lanes", [1, 4])
def test_several_threads_and_connections(num_io_threads: int, num_lanes: int) -> None:
    with Mesh(3, 1, kind="tcp", num_lanes=num_lanes, num_io_threads=num_io_threads) as mesh:
        mesh.declare(0, 4_000_000, "int32", spread(4_000_000, 50_000, range(4)))
        for step in range(5):
            sources = contributions("int32", 1_000_000, 3, seed=step)
            for result in mesh.push_pull(0, step, sources):
                np.testing.assert_array_equal(result, reduced("int32", "sum", sources))


def test_an_odd_address() -> None:
    with Mesh(2) as mesh:
        mesh.declare(0, 40_000, "float32", spread(40_000, 8_000, range(2)))
        memory = [np.zeros(40_001, np.uint8) for _ in range(2)]
        arrays = [np.frombuffer(block.data, np.float32, 10_000, offset=1) for block in memory]
        for array in arrays:
            array[:] = np.arange(10_000)
        finish(mesh.submit(0, 0, arrays, arrays))
        np.testing.assert_array_equal(arrays[0], 2 * np.arange(10_000, dtype=np.float32))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    num_workers=st.integers(1, 5),
    num_servers=st.integers(0, 2),
    chunk_bytes=st.sampled_from([64, 4096, 65_536]),
    credit_bytes=st.sampled_from([0, 1, 30_000]),
    part_bytes=st.sampled_from([64, 4_000, 1 << 20]),
    sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=8),
    kind=st.sampled_from(["unix", "shared"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_order_of_submission(
    num_workers: int,
    num_servers: int,
    chunk_bytes: int,
    credit_bytes: int,
    part_bytes: int,
    sizes: list[int],
    kind: str,
    seed: int,
) -> None:
    chance = random.Random(seed)
    with Mesh(num_workers, num_servers, kind=kind, chunk_bytes=chunk_bytes) as mesh:
        for tensor, num_items in enumerate(sizes):
            mesh.declare(tensor, 4 * num_items, "int32", spread(4 * num_items, part_bytes, range(mesh.num_members)))
        for engine in mesh.workers:
            engine.set_credit(0, credit_bytes)
        sources = [contributions("int32", size, num_workers, seed=seed + i) for i, size in enumerate(sizes)]
        results = [[np.zeros_like(array) for array in arrays] for arrays in sources]
        handles = []
        for rank, engine in enumerate(mesh.workers):
            for tensor in chance.sample(range(len(sizes)), len(sizes)):
                handles.append(
                    engine.submit(
                        tensor=tensor,
                        step=0,
                        rank=chance.randrange(3),
                        source=sources[tensor][rank].ctypes.data,
                        destination=results[tensor][rank].ctypes.data,
                        num_bytes=sources[tensor][rank].nbytes,
                    )
                )
        finish(handles)
        for arrays, received in zip(sources, results, strict=True):
            for result in received:
                np.testing.assert_array_equal(result, reduced("int32", "sum", arrays))
