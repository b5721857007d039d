"""The first bytes of a result: a worker may have them while others are missing, and the engine lets go of them."""

import threading

import numpy as np
from numpy.typing import NDArray

from legato._native import Handle
from tests.engine.lone import Lone
from tests.engine.mesh import TIMEOUT_S, Mesh, eventually, finish, spread
from tests.engine.wire import SUM, Header

PART = 4096


def submit(worker: Lone, array: NDArray[np.float32]) -> Handle:
    """As parts that the server, a socket of the test's, has received and not answered."""
    worker.declare(0, array.nbytes, spread(array.nbytes, PART, [1]))
    handle = worker.submit(0, array)
    for _ in range(array.nbytes // PART):
        worker.peers[1].receive()
    return handle


def answer(worker: Lone, part: int) -> None:
    worker.peers[1].send(Header(kind=SUM, part_offset=part * PART, part_length=PART), bytes([part + 1]) * PART)


def has_arrived(handle: Handle, num_parts: int) -> None:
    eventually(lambda: handle.first_bytes == num_parts * PART, f"{num_parts} parts, not {handle.first_bytes} bytes")


def test_they_are_those_before_which_nothing_is_missing() -> None:
    with Lone(num_workers=1, chunk_bytes=PART) as worker:
        array = np.zeros(5 * PART // 4, np.float32)
        handle = submit(worker, array)
        assert handle.first_bytes == 0
        assert not handle.wait_first(1, 0.0)
        for part, num_first in ((1, 0), (0, 2), (4, 2), (2, 3)):
            answer(worker, part)
            has_arrived(handle, num_first)
            assert handle.wait_first(num_first * PART, 0.0)
            assert not handle.wait_first(num_first * PART + 1, 0.0)
        first = array.view(np.uint8)[: 3 * PART]
        assert first.reshape(3, PART).T.tolist() == [[1, 2, 3]] * PART
        first[:] = 9  # they are ours
        answer(worker, 3)
        finish([handle])
        assert handle.first_bytes == 5 * PART
        assert set(first.tolist()) == {9}


def test_everybody_is_woken_by_what_he_waits_for() -> None:
    with Lone(num_workers=1, chunk_bytes=PART) as worker:
        handle = submit(worker, np.zeros(3 * PART // 4, np.float32))
        woken: list[int] = []

        def wait(num_parts: int) -> None:
            assert handle.wait_first(num_parts * PART, TIMEOUT_S)
            woken.append(num_parts)

        threads = [threading.Thread(target=wait, args=(num_parts,)) for num_parts in (3, 1, 2)]
        for thread in threads:
            thread.start()
        for part in range(3):
            answer(worker, part)
            eventually(lambda: len(woken) > part, f"{part + 1} parts are here")  # noqa: B023
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert woken == [1, 2, 3]


def test_nobody_waits_for_a_task_that_has_failed() -> None:
    with Lone(num_workers=1, chunk_bytes=PART) as worker:
        handle = submit(worker, np.zeros(2 * PART // 4, np.float32))
        answer(worker, 0)
        assert handle.wait_first(PART, TIMEOUT_S)
        worker.release(1)
        worker.peers[1].sock.close()
        assert handle.wait_first(2 * PART, TIMEOUT_S)
        assert handle.failure is not None
        assert handle.first_bytes == PART


def test_servers_and_relays_let_go_of_them_too() -> None:
    """What was taken early may be changed: nobody else gets the change."""
    parts = spread(64 * PART, PART, range(4))
    with Mesh(4, hosts=[0, 0, 1, 1], chunk_bytes=PART) as mesh:
        mesh.declare(0, 64 * PART, "float32", parts)
        for step in range(5):
            arrays = [np.full(16 * PART, rank + 1, np.float32) for rank in range(4)]
            handles = mesh.submit(0, step, arrays, arrays)
            for handle, array in zip(handles, arrays, strict=True):
                done = 0
                while done < array.nbytes:
                    assert handle.wait_first(done + 1, TIMEOUT_S)
                    here = handle.first_bytes
                    assert set(array[done // 4 : here // 4].tolist()) == {10.0}
                    array[done // 4 : here // 4] = np.nan
                    done = here
            finish(handles)
            assert all(np.isnan(array).all() for array in arrays)
