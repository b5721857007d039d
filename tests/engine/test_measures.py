"""Measures of sums: those of the numbers that every worker gets, the same bits everywhere, ahead of the sums."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from legato._native import Codec, Coding, Handle
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Array, Mesh, Part, eventually, finish, spread
from tests.engine.numbers import by_parts, contributions, item_bytes
from tests.engine.test_codecs import CODECS, gradients
from tests.engine.wire import GOODBYE, LATE, MEASURE, SUM, Header

NUM_ITEMS = 10_007
CHUNK = 4096


def measured(handle: Handle) -> tuple[float, float]:
    assert handle.wait_measured(TIMEOUT_S)
    assert handle.measure is not None, handle.failure
    return handle.measure


def check(mesh: Mesh, dtype: str, sources: list[Array], parts: list[Part], **more: Any) -> None:
    for step in range(2):
        results = [np.zeros_like(source) for source in sources]
        handles = mesh.submit(0, step, sources, results, reduction="average", measured=True, **more)
        known = [measured(handle) for handle in handles]
        finish(handles)
        for result, each in zip(results, known, strict=True):
            assert each == by_parts(dtype, result, parts)


@pytest.mark.parametrize(
    ("num_servers", "serving"),
    [pytest.param(0, range(3), id="joint"), pytest.param(2, range(3, 5), id="separate"), pytest.param(2, range(5))],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_measure_is_that_of_what_every_worker_gets(dtype: str, num_servers: int, serving: range) -> None:
    num_bytes = NUM_ITEMS * item_bytes(dtype)
    parts = spread(num_bytes, 16_384, serving)
    with Mesh(3, num_servers, chunk_bytes=CHUNK, num_lanes=2) as mesh:
        mesh.declare(0, num_bytes, dtype, parts)
        check(mesh, dtype, contributions(dtype, NUM_ITEMS, 3), parts)


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 1, 1]])
def test_relays_pass_on_who_asked(hosts: list[int]) -> None:
    parts = spread(4 * NUM_ITEMS, 8_192, range(4))
    with Mesh(4, hosts=hosts, chunk_bytes=CHUNK) as mesh:
        mesh.declare(0, 4 * NUM_ITEMS, "float32", parts)
        check(mesh, "float32", contributions("float32", NUM_ITEMS, 4), parts)


@pytest.mark.parametrize("num_servers", [0, 2])
@pytest.mark.parametrize("name", CODECS)
def test_of_encoded_tensors_it_is_that_of_what_is_decoded(name: str, num_servers: int) -> None:
    (push, _), (pull, _) = CODECS[name]
    parts = spread(4 * NUM_ITEMS, 12_000, range(3, 5) if num_servers else range(3))
    with Mesh(3, num_servers, chunk_bytes=1024) as mesh:
        coding = Coding(push=push, pull=pull, feeds_back=True, server_feeds_back=True)
        mesh.declare(0, 4 * NUM_ITEMS, "float32", parts, coding)
        check(mesh, "float32", gradients(0), parts)


def test_only_those_who_ask_are_told_and_one_is_enough() -> None:
    parts = spread(4 * NUM_ITEMS, 8_192, range(3))
    with Mesh(3, chunk_bytes=CHUNK) as mesh:
        mesh.declare(0, 4 * NUM_ITEMS, "float32", parts)
        for step in range(6):
            sources = contributions("float32", NUM_ITEMS, 3, seed=step)
            results = [np.zeros_like(source) for source in sources]
            asks = [{"measured": rank == step % 3} for rank in range(3)]
            handles = mesh.submit(0, step, sources, results, each=asks)
            finish(handles)
            for rank, handle in enumerate(handles):
                expected = by_parts("float32", results[rank], parts) if rank == step % 3 else None
                assert handle.measure == expected


def test_what_nobody_had_measures_nothing() -> None:
    parts = spread(4 * NUM_ITEMS, 8_192, range(2))
    with Mesh(2) as mesh:
        mesh.declare(0, 4 * NUM_ITEMS, "float32", parts)
        arrays = [np.ones(NUM_ITEMS, np.float32) for _ in range(2)]
        handles = mesh.submit(0, 0, arrays, arrays, absent=True, measured=True)
        finish(handles)
        assert all(handle.empty and handle.measure == (0.0, 0.0) for handle in handles)
        mesh.declare(1, 0, "float32", [])
        arrays = [np.ones(0, np.float32) for _ in range(2)]
        assert [handle.measure for handle in mesh.submit(1, 0, arrays, arrays, measured=True)] == [(0.0, 0.0)] * 2


def test_an_overflow_is_seen_by_all() -> None:
    parts = spread(4 * NUM_ITEMS, 8_192, range(3))
    with Mesh(3) as mesh:
        mesh.declare(0, 4 * NUM_ITEMS, "float32", parts)
        for step, value in enumerate([np.inf, -np.inf, np.nan]):
            sources = [np.ones(NUM_ITEMS, np.float32) for _ in range(3)]
            sources[1][4711] = value
            handles = mesh.submit(0, step, sources, sources, measured=True)
            finish(handles)
            for handle in handles:
                np.testing.assert_equal(handle.measure, (abs(value), abs(value)))


def test_measures_do_not_wait_for_sums() -> None:
    """Servers hold all sums until those of both tensors are complete; the measures of the first come nevertheless."""
    parts = spread(4 * NUM_ITEMS, 8_192, range(3))
    with Mesh(3) as mesh:
        for tensor in range(2):
            mesh.declare(tensor, 4 * NUM_ITEMS, "float32", parts)
        for engine in mesh.engines:
            engine.set_stage_barrier(0, [0, 1])
        first = [np.ones(NUM_ITEMS, np.float32) for _ in range(3)]
        second = [np.ones(NUM_ITEMS, np.float32) for _ in range(3)]
        handles = mesh.submit(0, 0, first, first, reduction="average", measured=True)
        assert [measured(handle) for handle in handles] == [(float(NUM_ITEMS), 1.0)] * 3
        assert not any(handle.poll() for handle in handles)
        finish([*handles, *mesh.submit(1, 0, second, second, measured=True)])


AGREED = Coding(push=Codec.int8(), pull=Codec.int8(), has_agreed_scale=True)


@pytest.mark.parametrize("more", [{"staleness": 1}, {"backups": 1}, {"coding": AGREED}])
def test_what_servers_cannot_measure_is_refused(more: dict[str, Any]) -> None:
    with Mesh(2, 1) as mesh:
        mesh.declare(0, 4, "float32", spread(4, 4, [2]), **more)
        array = np.ones(1, np.float32)
        scale = np.ones(1, np.float32)
        with pytest.raises(ValueError, match="tensor 'tensor0' cannot be measured"):
            mesh.submit(0, 0, [array] * 2, [array] * 2, measured=True, scale=scale.ctypes.data)


# ---- on the wire ----


def member() -> Lone:
    """Member 0 of two workers. Member 1 serves tensor 0."""
    lone = Lone(num_workers=2, num_members=2, chunk_bytes=CHUNK)
    lone.declare(0, 4, [(0, 4, 1, EVERYONE, EVERYONE)])
    return lone


TOLD = Header(kind=MEASURE, part_length=4)


def test_a_task_is_over_when_its_sum_and_its_measure_are_here_in_any_order() -> None:
    array = np.ones(1, np.float32)
    with member() as lone:
        for step, frames in enumerate([(MEASURE, SUM), (SUM, MEASURE)]):
            handle = lone.submit(0, array, step=step, measured=True)
            assert lone.peers[1].receive().header.flags == 1
            for kind in frames:
                assert not handle.poll()
                payload = struct.pack("<dd", 4.0, 2.0) if kind == MEASURE else struct.pack("<f", 2.0)
                lone.peers[1].send(replace(TOLD, kind=kind, step=step), payload)
            finish([handle])
            assert handle.measure == (4.0, 2.0)


@pytest.mark.parametrize(
    ("payload", "why"),
    [(b"", "a measure that is cut off"), (bytes(8), "a measure that is cut off"), (bytes(16), "a second measure")],
)
def test_a_measure_that_cannot_be_is_refused(payload: bytes, why: str) -> None:
    with member() as lone:
        handle = lone.submit(0, np.ones(1, np.float32), measured=True)
        if len(payload) == 16:
            lone.peers[1].send(TOLD, payload)
        lone.peers[1].send(TOLD, payload)
        assert handle.wait(TIMEOUT_S)
        assert handle.failure is not None
        assert why in handle.failure.message
        assert handle.failure.rank == 1


def test_a_rank_that_leaves_before_its_measure_is_missed() -> None:
    with member() as lone:
        handle = lone.submit(0, np.ones(1, np.float32), measured=True)
        lone.peers[1].receive()
        lone.peers[1].send(replace(TOLD, kind=SUM), struct.pack("<f", 2.0))
        lone.peers[1].send(Header(kind=GOODBYE))
        assert handle.wait_measured(TIMEOUT_S)
        eventually(lambda: handle.failure is not None, "the task fails")
        assert handle.measure is None
        assert handle.failure is not None
        assert (handle.failure.kind, handle.failure.rank) == ("peer_lost", 1)


def test_who_waits_for_a_measure_knows_whom_it_waits_for() -> None:
    with member() as lone:
        handle = lone.submit(0, np.ones(1, np.float32), measured=True)
        lone.peers[1].send(replace(TOLD, kind=LATE), struct.pack("<i", 1))
        eventually(lambda: handle.missing == [1], "it hears who is late")
        assert not handle.wait_measured(0.0)
