"""Workers that have nothing to add: they get the sum of the others, and all are told when there is none. One may do
without it: then nobody sends it any."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from legato._native import Collector, Engine
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Array, Mesh, finish, spread
from tests.engine.wire import ACKNOWLEDGE, PUSH, READY, SUM, Header

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


# ---- without the sum ----


def collector_of(engine: Engine, num_bytes: int) -> Collector:
    collector = Collector(engine, None, [(0, "tensor0", num_bytes, None)])
    collector.follow(0, [([0], 0, 0)])
    return collector


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("hosts", [None, [0, 0, 1, 1], [0, 1, 1, 1]], ids=["each has its own", "two and two", "one"])
def test_who_does_without_the_sum_has_its_own_share_of_it(hosts: list[int] | None, dtype: str) -> None:
    arrays = sources(dtype)
    expected = sum(array.astype("float64") for array in arrays[:3]) / 3
    num_bytes = arrays[0].nbytes
    parts = spread(num_bytes, 4096, range(4))
    own = np.concatenate([np.full(length, server == 3) for _, length, server, _, _ in parts])
    with Mesh(NUM_WORKERS, num_learners=1, hosts=hosts, chunk_bytes=1024) as mesh:
        mesh.declare(0, num_bytes, dtype, parts)
        collectors = [collector_of(engine, num_bytes) for engine in mesh.engines]
        for step in range(3):
            results = [array.copy() for array in arrays]
            results[3][:] = -1
            for rank, (collector, result) in enumerate(zip(collectors, results, strict=True)):
                learns = rank == 3
                collector.add(0, result.ctypes.data, num_bytes, learns, result, unread=learns and step < 2)
            handles = [collector.sent(0, TIMEOUT_S) for collector in collectors]
            finish([handle for handle in handles if handle is not None])
            for result in results[: 3 + (step == 2)]:
                np.testing.assert_allclose(result.astype("float64"), expected, rtol=1e-3)
            bytes_of = results[3].view(np.uint8)
            np.testing.assert_array_equal(bytes_of[own], results[0].view(np.uint8)[own])
            if step < 2 and hosts is None:
                assert (results[3][~own[:: arrays[0].itemsize]] == -1).all()


def test_a_server_acknowledges_to_who_does_without() -> None:
    with Lone(num_workers=3, num_members=3) as lone:
        lone.declare(0, 4, [(0, 4, 0, EVERYONE, EVERYONE)])
        for step, flags in enumerate([2, 0]):
            frame = Header(step=step, part_length=4, flags=flags)
            handle = lone.submit(0, np.ones(1, np.float32), step=step)
            lone.peers[1].send(replace(frame, kind=READY))
            lone.peers[2].send(replace(frame, kind=PUSH, flags=0), struct.pack("<f", 2.0))
            finish([handle])
            answers = [lone.peers[peer].receive() for peer in (1, 2)]
            assert [answer.header.kind for answer in answers] == [ACKNOWLEDGE if flags else SUM, SUM]
            assert answers[1].payload == struct.pack("<f", 3.0)


@pytest.mark.parametrize("unread", [True, False])
def test_an_answer_without_the_sum_is_for_those_who_asked_for_it(unread: bool) -> None:
    with Lone() as lone:
        lone.declare(0, 4, [(0, 4, 1, EVERYONE, EVERYONE)])
        collector = collector_of(lone.engine, 4)
        array = np.full(1, -1, np.float32)
        collector.add(0, array.ctypes.data, 4, True, array, unread=unread)
        assert lone.peers[1].receive().header.flags == (2 if unread else 0)
        lone.peers[1].send(Header(kind=ACKNOWLEDGE, part_length=4))
        handle = collector.sent(0, TIMEOUT_S)
        assert handle is not None
        assert handle.wait(TIMEOUT_S)
        assert array.tolist() == [-1.0]
        if unread:
            assert (handle.failure, handle.empty) == (None, False)
        else:
            assert handle.failure is not None
            assert "an answer without the sum" in handle.failure.message
