"""What a plan asks of the engine: buckets, ranks of their own for contributions and sums, a barrier between them."""

from collections.abc import Sequence

import numpy as np
import pytest

from legato._native import Collector, Engine, Handle
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Array, Mesh, eventually, finish
from tests.engine.wire import PUSH, SUM, Header

PART = 4096
AVERAGE = 1


def declare(member: Lone, num_tensors: int, *, server: int, num_bytes: int = PART) -> list[Array]:
    for tensor in range(num_tensors):
        member.declare(tensor, num_bytes, [(0, num_bytes, server, EVERYONE, EVERYONE)])
    return [np.full(num_bytes // 4, tensor, np.float32) for tensor in range(num_tensors)]


def submit(engine: Engine, step: int, ranks: tuple[int, int], tensors: Sequence[tuple[int, Array]]) -> list[Handle]:
    """Tensors as one bucket, through a collector as in training; the ranks are of contributions and of sums."""
    collector = Collector(engine, None, [(tensor, f"t{tensor}", array.nbytes, None) for tensor, array in tensors])
    collector.follow(0, [(list(range(len(tensors))), *ranks)])
    collector.set_next_steps([step] * len(tensors))
    for place, (_, array) in enumerate(tensors):
        collector.add(place, array.ctypes.data, array.nbytes, False, array)
    handles = [collector.sent(place, TIMEOUT_S) for place in range(len(tensors))]
    assert None not in handles
    return [handle for handle in handles if handle is not None]


def some(arrays: list[Array], *tensors: int) -> list[tuple[int, Array]]:
    return [(tensor, arrays[tensor]) for tensor in tensors]


def test_a_bucket_leaves_in_the_order_given_and_no_other_comes_between() -> None:
    with Lone(num_workers=1, num_members=2, chunk_bytes=PART) as worker:
        arrays = declare(worker, 6, server=1)
        bulk = declare_bulk(worker, tensor=9, server=1)
        worker.submit(9, bulk, rank=9)
        eventually(lambda: worker.is_stuck(1), "the link is stuck")
        first = submit(worker.engine, 0, (5, 5), some(arrays, 3, 0, 4))
        then = submit(worker.engine, 0, (5, 5), some(arrays, 5, 1))
        urgent = submit(worker.engine, 0, (1, 5), some(arrays, 2))
        assert [len(handles) for handles in (first, then, urgent)] == [3, 2, 1]
        assert pushed(worker, 6, but=9) == [2, 3, 0, 4, 5, 1]


def declare_bulk(member: Lone, *, tensor: int, server: int) -> Array:
    """Enough to fill what the kernel holds: then the engine chooses what leaves next."""
    num_bytes = 64 * PART
    member.declare(tensor, num_bytes, [(0, num_bytes, server, EVERYONE, EVERYONE)])
    return np.zeros(num_bytes // 4, np.float32)


def pushed(member: Lone, count: int, *, but: int) -> list[int]:
    tensors: list[int] = []
    while len(tensors) < count:
        header = member.peers[1].receive().header
        if header.tensor != but:
            tensors.append(header.tensor)
    return tensors


def test_all_of_a_bucket_or_nothing() -> None:
    with Lone(num_workers=1, num_members=2) as worker:
        arrays = declare(worker, 3, server=1)
        for refused, why in [
            (some(arrays, 0, 1, 0), "submitted twice at once"),
            ([*some(arrays, 0, 1), (2, arrays[2][:2])], "declared with 4096 bytes"),
            ([*some(arrays, 0), (7, arrays[2])], "not declared"),
        ]:
            with pytest.raises(ValueError, match=why):
                submit(worker.engine, 0, (0, 0), refused)
        assert worker.engine.statistics()["handles"] == 0
        submit(worker.engine, 0, (0, 0), some(arrays, 0, 1, 2))
        assert pushed(worker, 3, but=-1) == [0, 1, 2]
        with pytest.raises(ValueError, match="still under way"):
            submit(worker.engine, 1, (0, 0), some(arrays, 0))


@pytest.mark.parametrize("pull_ranks", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 0, 0]])
def test_sums_leave_by_a_rank_of_their_own(pull_ranks: list[int]) -> None:
    """With the link stuck, contributions arrive in one order, and their sums leave in another."""
    with Lone(num_workers=2, num_members=2, chunk_bytes=PART) as server:
        arrays = declare(server, 5, server=0)
        bulk = declare_bulk(server, tensor=9, server=1)
        server.submit(9, bulk, rank=9)
        eventually(lambda: server.is_stuck(1), "the link is stuck")

        def contribute(tensor: int, rank: int) -> None:
            header = Header(kind=PUSH, reduction=AVERAGE, tensor=tensor, part_length=PART, rank=rank)
            server.peers[1].send(header, np.ones(PART // 4, np.float32).tobytes())

        def slots(number: int) -> None:
            eventually(lambda: server.engine.statistics()["slots"] == number, f"{number} sums are under way")

        for tensor, pull_rank in enumerate(pull_ranks):
            contribute(tensor, pull_rank)
        slots(4)
        for tensor, pull_rank in enumerate(pull_ranks):
            submit(server.engine, 0, (tensor, pull_rank), some(arrays, tensor))
        slots(0)
        # What the I/O thread does next comes after all answers have been queued.
        contribute(4, 0)
        slots(1)
        expected = sorted(range(4), key=lambda tensor: (pull_ranks[tensor], tensor))
        assert pushed(server, 4, but=9) == expected


def test_with_a_stage_barrier_no_sum_leaves_before_all_are_complete() -> None:
    with Lone(num_workers=2, num_members=2) as server:
        arrays = declare(server, 3, server=0)
        server.engine.set_stage_barrier(1, [0, 1])

        def contribute(step: int, tensor: int) -> None:
            header = Header(kind=PUSH, reduction=AVERAGE, step=step, tensor=tensor, part_length=PART)
            server.peers[1].send(header, np.ones(PART // 4, np.float32).tobytes())

        def answers(count: int) -> list[tuple[int, int]]:
            headers = [server.peers[1].receive_until(SUM).header for _ in range(count)]
            return [(header.step, header.tensor) for header in headers]

        for step in (0, 1):  # before the barrier each by itself; tensor 2 is never held
            handles = submit(server.engine, step, (0, 0), some(arrays, 0, 1, 2))
            contribute(step, 0)
            if step == 0:
                assert answers(1) == [(0, 0)]
            contribute(step, 2)
            assert answers(1) == [(step, 2)]
            assert handles[0].poll() == (step == 0), "the server itself waits, too"
            contribute(step, 1)
            assert answers(2 - (step == 0)) == [(step, 0), (step, 1)][step == 0 :]
            finish(handles)
        server.engine.set_stage_barrier(2, [])
        submit(server.engine, 2, (0, 0), some(arrays, 0))
        contribute(2, 0)
        assert answers(1) == [(2, 0)]


def test_buckets_of_members_that_group_them_differently_are_summed_alike() -> None:
    with Mesh(2) as mesh:
        for tensor in range(3):
            mesh.declare(tensor, PART, "float32", [(0, PART, tensor % 2, EVERYONE, EVERYONE)])
        arrays = [[np.full(PART // 4, 10 * rank + tensor, np.float32) for tensor in range(3)] for rank in range(2)]
        groups = [[[0, 1, 2]], [[2], [1, 0]]]
        handles = [
            handle
            for rank, engine in enumerate(mesh.workers)
            for group in groups[rank]
            for handle in submit(engine, 0, (0, 0), some(arrays[rank], *group))
        ]
        for handle in handles:
            assert handle.wait(TIMEOUT_S)
        for mine in arrays:
            for tensor, array in enumerate(mine):
                np.testing.assert_array_equal(array, np.full(PART // 4, 5 + tensor, np.float32))
