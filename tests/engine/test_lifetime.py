"""Engines come and go, run for thousands of steps, and leave nothing behind."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legato._native import Engine, Handle
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Mesh, Part, finish, spread
from tests.engine.numbers import contributions
from tests.leftovers import expect_nothing_beyond, open_files_and_threads


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_close_twice_and_from_two_threads() -> None:
    mesh = Mesh(2)
    threads = [threading.Thread(target=engine.close) for engine in mesh.engines * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    mesh.close()
    assert all(engine.failure is None for engine in mesh.engines)
    assert all(engine.statistics()["threads"] == 0 for engine in mesh.engines)


def test_close_fails_what_is_under_way_and_what_comes_later() -> None:
    with Mesh(2) as mesh:
        mesh.declare(0, 4096, "float32", spread(4096, 1024, range(2)))
        mesh.declare(1, 4096, "float32", spread(4096, 1024, range(2)))
        array = np.zeros(1024, np.float32)
        engine, address = mesh.engines[0], array.ctypes.data
        handle = engine.submit(tensor=0, step=0, rank=0, source=address, destination=address, num_bytes=array.nbytes)
        assert not handle.poll()
        engine.close()
        later = engine.submit(tensor=1, step=4, rank=0, source=address, destination=address, num_bytes=array.nbytes)
        for closed, expected in [(handle, ("closed", 0, 0)), (later, ("closed", 1, 4))]:
            assert closed.wait(TIMEOUT_S)
            failure = closed.failure
            assert failure is not None
            assert (failure.kind, failure.tensor, failure.step) == expected


def wait_and_leave(handle: Handle, engine: Engine) -> None:
    finish([handle])
    engine.close()


def test_the_last_sums_are_delivered_although_their_server_closes() -> None:
    """A joint member that has all it wants still answers the others before it leaves."""
    for _ in range(10):
        with Mesh(3, kind="tcp") as mesh:
            mesh.declare(0, 3 << 20, "float16", spread(3 << 20, 1 << 16, range(3)))
            sources = contributions("float16", 3 << 19, 3)
            results = [np.zeros_like(source) for source in sources]
            handles = mesh.submit(0, 0, sources, results)
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(wait_and_leave, handles, mesh.engines))
            assert [handle.failure for handle in handles] == [None] * 3


def test_nothing_is_left_behind() -> None:
    before = open_files_and_threads()
    for _ in range(20):
        with Mesh(3, 1, num_lanes=2, num_io_threads=2) as mesh:
            mesh.declare(0, 4096, "float32", spread(4096, 512, range(4)))
            mesh.push_pull(0, 0, contributions("float32", 1024, 3))
        expect_nothing_beyond(before)


def test_an_engine_that_is_dropped_closes_itself() -> None:
    before = open_files_and_threads()
    mesh = Mesh(2, heartbeat_s=0.2)
    del mesh
    expect_nothing_beyond(before)


def test_thousands_of_steps_do_not_grow() -> None:
    num_warm, num_steps = 200, 2_000
    with Mesh(2, 1) as mesh:
        for tensor in range(3):
            mesh.declare(tensor, 65_536, "float16", spread(65_536, 16_384, range(3)))
        arrays = [[np.ones(32_768, np.float16) for _ in range(2)] for _ in range(3)]
        for step in range(num_warm + num_steps):
            if step == num_warm:
                before, memory = open_files_and_threads(), resident_bytes()
                slot_bytes = [engine.statistics()["slot_bytes"] for engine in mesh.engines]
            for tensor in range(3):
                if step % 100 == 0:
                    mesh.lay_out(tensor, step + 1, spread(65_536, 8_192 << step // 100 % 3, range(3)))
            handles = [
                mesh.submit(tensor, step, arrays[tensor], arrays[tensor], reduction="max") for tensor in range(3)
            ]
            for group in handles:
                finish(group)
        expect_nothing_beyond(before)
        assert resident_bytes() < memory + (8 << 20)
        for engine, earlier_bytes in zip(mesh.engines, slot_bytes, strict=True):
            statistics = engine.statistics()
            assert (statistics["slots"], statistics["handles"], statistics["in_flight_bytes"]) == (0, 0, 0)
            assert statistics["slot_bytes"] <= max(earlier_bytes, 3 * 3 * 65_536 * 2)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"member": 2}, "member"),
        ({"num_workers": 0}, "num_workers"),
        ({"num_members": 1, "num_workers": 2}, "num_workers"),
        ({"chunk_bytes": 100}, "chunk_bytes"),
        ({"num_io_threads": 0}, "num_io_threads"),
        ({"heartbeat_s": 0.0}, "heartbeat_s"),
    ],
)
def test_options_that_cannot_be(options: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Engine(**{"member": 0, "num_workers": 2, "num_members": 2, **options})  # type: ignore[arg-type]


def test_declarations_that_cannot_be() -> None:
    with Mesh(2, 1) as mesh:
        engine = mesh.engines[0]
        engine.declare(0, "x", 16, "float32")
        with pytest.raises(ValueError, match="declared already, as 'x'"):
            engine.declare(0, "y", 16, "float32")
        with pytest.raises(ValueError, match="whole number"):
            engine.declare(1, "y", 15, "float32")
        with pytest.raises(ValueError, match="dtype"):
            engine.declare(1, "y", 16, "complex64")


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([(0, 20, 0, -1, -1)], "beyond"),
        ([(8, 2**64 - 8, 0, -1, -1)], "beyond"),
        ([(0, 8, 0, -1, -1), (4, 8, 0, -1, -1)], "overlaps"),
        ([(8, 8, 0, -1, -1), (0, 8, 0, -1, -1)], "comes after a later one"),
        ([(2, 4, 0, -1, -1)], "cuts an item"),
        ([(0, 16, 3, -1, -1)], "no member"),
        ([(0, 16, 0, 2, -1)], "no worker"),
    ],
)
def test_layouts_that_cannot_be(parts: list[Part], why: str) -> None:
    with Mesh(2, 1) as mesh:
        mesh.engines[0].declare(0, "x", 16, "float32")
        with pytest.raises(ValueError, match=why):
            mesh.engines[0].lay_out(0, 0, parts)
        with pytest.raises(ValueError, match="not declared"):
            mesh.engines[0].lay_out(1, 0, [])


def test_submissions_that_cannot_be() -> None:
    arrays = [np.zeros(4, np.float32) for _ in range(2)]
    with Mesh(2, 1) as mesh:
        for tensor in range(2):
            for engine in mesh.engines:
                engine.declare(tensor, f"tensor{tensor}", 16, "float32")
        mesh.lay_out(0, 0, [(0, 16, 0, EVERYONE, EVERYONE)])
        with pytest.raises(ValueError, match="no layout"):
            mesh.submit(1, 0, arrays, arrays)
        with pytest.raises(ValueError, match="not declared"):
            mesh.submit(9, 0, arrays, arrays)
        finish(mesh.submit(0, 1, arrays, arrays))
        with pytest.raises(ValueError, match="step 1 has been before it"):
            mesh.submit(0, 1, arrays, arrays)
        with pytest.raises(ValueError, match="already come to step 1"):
            mesh.lay_out(0, 1, [])
        array = arrays[0]
        address = array.ctypes.data
        with pytest.raises(ValueError, match="is a server"):
            mesh.engines[2].submit(
                tensor=0, step=2, rank=0, source=address, destination=address, num_bytes=array.nbytes
            )
        mesh.engines[0].submit(tensor=0, step=2, rank=0, source=address, destination=address, num_bytes=array.nbytes)
        with pytest.raises(ValueError, match="step 2 is still under way"):
            mesh.engines[0].submit(
                tensor=0, step=3, rank=0, source=address, destination=address, num_bytes=array.nbytes
            )


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ({"num_bytes": 12}, "tensor 'x' is declared with 16 bytes, but its source has 12, from byte 0 on"),
        ({"num_bytes": 20}, "declared with 16 bytes, but its source has 20"),
        ({"source": 0}, "its source has 16 bytes at address 0"),
        ({"destination": 0}, "its destination has 16 bytes at address 0"),
        ({"destination_segment": (0, 8)}, "its destination has 8, from byte 0 on"),
        ({"destination_segment": (4, 16)}, "its destination has 16, from byte 4 on"),
        ({"source_segment": (2**64 - 8, 16)}, "its source has 16, from byte 18446744073709551608 on"),
    ],
    ids=["short", "long", "no source", "no destination", "another segment", "beyond", "far beyond"],
)
def test_memory_that_does_not_fit_its_tensor(memory: dict[str, Any], why: str) -> None:
    """It is refused before a byte is sent: the tensor's next task is its first."""
    array = np.ones(4, np.float32)
    given: dict[str, Any] = {"source": array.ctypes.data, "destination": array.ctypes.data, "num_bytes": array.nbytes}
    with Mesh(1, 1) as mesh:
        for engine in mesh.engines:
            engine.declare(0, "x", 16, "float32")
        mesh.lay_out(0, 0, [(0, 8, 1, EVERYONE, 0), (8, 8, 1, 0, EVERYONE)])
        with pytest.raises(ValueError, match=why):
            mesh.engines[0].submit(tensor=0, step=0, rank=0, **{**given, **memory})
        assert mesh.engines[0].statistics()["frames_sent"] == 0
        finish([mesh.engines[0].submit(tensor=0, step=0, rank=0, **given)])


def test_a_worker_needs_memory_only_for_what_it_writes_and_reads() -> None:
    """Worker 0 has the first half and gathers nothing; worker 1 has the second half, and gathers both."""
    halves = [np.full(2, rank + 1, np.float32) for rank in range(2)]
    whole = np.zeros(4, np.float32)
    with Mesh(2) as mesh:
        mesh.declare(0, 16, "float32", [(0, 8, 0, 0, 1), (8, 8, 0, 1, 1)])
        given: dict[str, Any] = {"tensor": 0, "step": 0, "rank": 0}
        sends = mesh.engines[0].submit(
            **given, source=halves[0].ctypes.data, source_segment=(0, 8), destination=0, num_bytes=0
        )
        gathers = mesh.engines[1].submit(
            **given, source=halves[1].ctypes.data, source_segment=(8, 8), destination=whole.ctypes.data, num_bytes=16
        )
        finish([sends, gathers])
    assert whole.tolist() == [1, 1, 2, 2]


def test_peers_that_cannot_be() -> None:
    """The sockets are the engine's all the same, and are closed."""
    with Mesh(2) as mesh:
        before = open_files_and_threads()
        for peer, why in [(1, "attached already"), (0, "no peer"), (2, "no peer")]:
            with pytest.raises(ValueError, match=why):
                mesh.engines[0].attach(peer, [socket.socket().detach()])
        with pytest.raises(ValueError, match="no sockets"):
            mesh.engines[0].attach(1, [])
        expect_nothing_beyond(before)


def test_a_server_that_is_not_attached() -> None:
    engine = Engine(member=0, num_workers=2, num_members=2)
    engine.declare(0, "x", 16, "float32")
    engine.lay_out(0, 0, [(0, 16, 1, EVERYONE, EVERYONE)])
    array = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="member 1, which is not attached"):
        engine.submit(
            tensor=0,
            step=0,
            rank=0,
            source=array.ctypes.data,
            destination=array.ctypes.data,
            num_bytes=array.nbytes,
        )
    engine.close()
