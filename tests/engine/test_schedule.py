"""What starts and what is sent first: rank, credit, preemption, plans that change, policies that run in Python."""

import random
from typing import Any

import numpy as np
import pytest

from legato.transports.native.player import WIRES
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, Mesh, eventually, finish, spread
from tests.engine.numbers import contributions, reduced
from tests.engine.wire import SUM, Header

PART = 4096


def lone_worker(**options: Any) -> Lone:
    """A worker whose only server is a socket of the test's."""
    return Lone(num_workers=1, num_members=2, chunk_bytes=PART, **options)


def declare(worker: Lone, tensor: int, num_parts: int) -> None:
    worker.declare(tensor, num_parts * PART, spread(num_parts * PART, PART, [1]))


@pytest.mark.parametrize("wire", WIRES)
def test_parts_leave_in_the_order_of_priority(wire: str) -> None:
    """With the link stuck, whatever order tasks come in, the most urgent leaves first; ties in order of arrival.

    Frames that make way for others have been sealed already, and are again when their turn comes.
    """
    priorities = [9, 5, 3, 3, 7, 0, 5, 1]
    num_parts = [64, *[2] * 7]
    arrays = [np.zeros(count * PART, np.uint8) for count in num_parts]
    with lone_worker(wire=wire) as worker:
        for tensor in range(8):
            declare(worker, tensor, num_parts[tensor])
        worker.submit(0, arrays[0], rank=priorities[0])
        eventually(lambda: worker.is_stuck(1), "the link is stuck")
        for tensor in range(1, 8):
            worker.submit(tensor, arrays[tensor], rank=priorities[tensor])
        headers = [worker.peers[1].receive().header for _ in range(64 + 14)]
    sent = [(header.tensor, header.part_offset) for header in headers]
    first = next(i for i, (tensor, _) in enumerate(sent) if tensor != 0)
    by_priority = sorted(range(1, 8), key=lambda tensor: priorities[tensor])
    assert sent[first : first + 14] == [(tensor, offset) for tensor in by_priority for offset in (0, PART)]
    assert {tensor for tensor, _ in sent[first + 14 :]} == {0}, "the bulk was overtaken, then went on"


def test_an_urgent_part_overtakes_a_large_one_in_its_middle() -> None:
    """Preemption at the socket: between two chunks of one part."""
    bulk, urgent = np.zeros(1 << 22, np.uint8), np.zeros(PART, np.uint8)
    with lone_worker() as worker:
        worker.declare(0, bulk.nbytes, [(0, bulk.nbytes, 1, EVERYONE, EVERYONE)])
        declare(worker, 1, 1)
        worker.submit(0, bulk, rank=9)
        eventually(lambda: worker.is_stuck(1), "the link is stuck")
        worker.submit(1, urgent, rank=0)
        num_before = 0
        while worker.peers[1].receive().header.tensor == 0:
            num_before += 1
    assert num_before * PART < bulk.nbytes / 16


def test_a_thousand_tensors_of_one_number() -> None:
    with Mesh(2, kind="tcp") as mesh:
        arrays = [np.ones(1000, np.float32) for _ in range(2)]
        for tensor in range(1000):
            mesh.declare(tensor, 4, "float32", [(0, 4, tensor % 2, EVERYONE, EVERYONE)])
        handles = []
        for tensor in range(1000):
            views = [array[tensor : tensor + 1] for array in arrays]
            handles += mesh.submit(tensor, 0, views, views)
        finish(handles)
        assert all((array == 2).all() for array in arrays)


@pytest.mark.parametrize("credit_parts", [1, 3, 10])
def test_credit_is_never_exceeded(credit_parts: int) -> None:
    arrays = [np.zeros(16 * PART, np.uint8) for _ in range(4)]
    with lone_worker(trace=True) as worker:
        worker.engine.set_credit(0, credit_parts * PART)
        for tensor in range(4):
            declare(worker, tensor, 16)
        for tensor in (3, 2, 1, 0):
            worker.submit(tensor, arrays[tensor], rank=tensor)
        for _ in range(64):
            worker.peers[1].receive()
        eventually(lambda: worker.engine.statistics()["in_flight_bytes"] == 0, "all is handed over")
        assert worker.engine.statistics()["peak_in_flight_bytes"] <= credit_parts * PART
        events = worker.engine.take_events()
    in_flight = 0
    for _, what, _, _, _, length in events:
        in_flight += {"start": length, "sent": -length}.get(what, 0)
        assert 0 <= in_flight <= credit_parts * PART


def test_a_part_larger_than_the_credit_travels_alone() -> None:
    with Mesh(2, trace=True) as mesh:
        mesh.declare(0, 400_000, "float32", spread(400_000, 100_000, range(2)))
        for engine in mesh.workers:
            engine.set_credit(0, 1)
        sources = contributions("float32", 100_000, 2)
        np.testing.assert_array_equal(mesh.push_pull(0, 0, sources)[0], reduced("float32", "sum", sources))
        assert mesh.engines[0].statistics()["peak_in_flight_bytes"] == 100_000


def test_workers_that_start_in_opposite_order_do_not_wait_for_each_other() -> None:
    """Credit for one part, spent on different parts: it must come back before the sum does."""
    arrays = [[np.ones(PART // 4, np.float32) for _ in range(2)] for _ in range(2)]
    with Mesh(2, 1) as mesh:
        for tensor in range(2):
            mesh.declare(tensor, PART, "float32", [(0, PART, 2, EVERYONE, EVERYONE)])
        handles = []
        for rank, engine in enumerate(mesh.workers):
            engine.set_credit(0, PART)
            for tensor in (rank, 1 - rank):
                array = arrays[rank][tensor]
                address = array.ctypes.data
                handles.append(
                    engine.submit(
                        tensor=tensor, step=0, rank=0, source=address, destination=address, num_bytes=array.nbytes
                    )
                )
        finish(handles)


def test_layouts_and_credit_change_while_tasks_are_under_way() -> None:
    """Ranks are at different steps when a new plan arrives; each step follows its own."""
    chance = random.Random(7)
    num_items, num_steps = 30_000, 40
    with Mesh(3, chunk_bytes=1024) as mesh:
        for tensor in range(4):
            mesh.declare(tensor, 4 * num_items, "int64", spread(4 * num_items, 40_000, range(3)))
        for step in range(num_steps):
            if step % 3 == 0:
                for tensor in range(4):
                    part_bytes = chance.choice([800, 8_000, 120_000])
                    mesh.lay_out(tensor, step + 2, spread(4 * num_items, part_bytes, range(chance.randrange(1, 4))))
                for engine in mesh.workers:
                    engine.set_credit(step + 2, chance.choice([0, 1, 10_000]))
            sources = [contributions("int64", num_items // 2, 3, seed=step * 4 + tensor) for tensor in range(4)]
            results = [[np.zeros_like(array) for array in arrays] for arrays in sources]
            handles = [mesh.submit(tensor, step, sources[tensor], results[tensor]) for tensor in range(4)]
            for tensor in range(4):
                finish(handles[tensor])
                for result in results[tensor]:
                    np.testing.assert_array_equal(result, reduced("int64", "sum", sources[tensor]))


def test_the_trace_of_one_task() -> None:
    array = np.zeros(2 * PART, np.uint8)
    with lone_worker(trace=True) as worker:
        declare(worker, 0, 2)
        handle = worker.submit(0, array)
        for offset in (0, PART):
            pushed = worker.peers[1].receive()
            assert pushed.header.part_offset == offset
            worker.peers[1].send(Header(kind=SUM, part_offset=offset, part_length=PART), pushed.payload)
        finish([handle])
        events = [(what, offset, length) for _, what, _, _, offset, length in worker.engine.take_events()]
        assert worker.engine.take_events() == []
    ready_and_start = [event for event in events if event[0] in ("ready", "start")]
    assert ready_and_start == [(what, offset, PART) for what in ("ready", "start") for offset in (0, PART)]
    for offset in (0, PART):
        assert events.index(("sent", offset, PART)) < events.index(("finish", offset, PART))
    assert events[-1] == ("done", 0, 2 * PART)
