"""Tensors that pass through the host in pieces: parts start as bytes become ready, and words say what has arrived."""

import ctypes.util
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato._native import Collector, Engine, WordWatch, cuda_wait_for_word, cuda_write_word
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE, TIMEOUT_S, Array, Mesh, Part, eventually, spread
from tests.engine.wire import SUM, Header

PART = 4096
UNSET = 0


_kept: list["Staged"] = []
"""They own the memory that engines use, so they outlive them."""


class Staged:
    """Tensors of a collector with their memory and their words, as an accelerator's staging has them."""

    def __init__(
        self, engine: Engine, sizes: Sequence[int], piece_bytes: int, buckets: Sequence[Sequence[int]] | None = None
    ) -> None:
        members = [(place, f"t{place}", size, None) for place, size in enumerate(sizes)]
        self.engine = engine
        self.collector = Collector(engine, None, members)
        ranked = [
            (list(each), rank, rank) for rank, each in enumerate(buckets or [[place] for place in range(len(sizes))])
        ]
        self.collector.follow(0, ranked)
        self.memory = [np.zeros(size, np.uint8) for size in sizes]
        self.words = [np.zeros(-(-size // piece_bytes), np.uint32) for size in sizes]
        for place, words in enumerate(self.words):
            self.collector.set_pieces(place, piece_bytes, words.ctypes.data)
        _kept.append(self)

    def add(self, place: int, *, absent: bool = False) -> int:
        """The mark of the step that begins."""
        memory = self.memory[place]
        return Collector.mark_of(self.collector.add(place, memory.ctypes.data, memory.nbytes, absent, memory))

    def ready(self, place: int, num_bytes: int) -> list[tuple[str, int, int]]:
        """The parts that become ready and start at once: (what, tensor, offset)."""
        self.engine.take_events()
        self.collector.ready(place, num_bytes)
        return self.begun()

    def begun(self) -> list[tuple[str, int, int]]:
        return [
            (what, tensor, offset)
            for _, what, tensor, _, offset, _ in self.engine.take_events()
            if what in ("ready", "start")
        ]

    def end(self, place: int) -> None:
        task = self.collector.sent(place, TIMEOUT_S)
        assert task is not None
        assert task.wait(TIMEOUT_S)
        assert task.failure is None


def lone_worker(**options: int) -> Lone:
    """A worker whose only server is a socket of the test's."""
    return Lone(num_workers=1, num_members=2, chunk_bytes=PART, trace=True, **options)


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    yield
    _kept.clear()


@pytest.fixture
def worker(kept: None) -> Iterator[Lone]:  # noqa: ARG001 - what is kept goes after it
    with lone_worker() as lone:
        yield lone


def begin(*offsets: int, tensor: int = 0) -> list[tuple[str, int, int]]:
    return [(what, tensor, offset) for what in ("ready", "start") for offset in offsets]


# ---- out: the watermark ----


def test_a_part_starts_as_soon_as_its_last_byte_is_ready(worker: Lone) -> None:
    worker.declare(0, 4 * PART, spread(4 * PART, PART, [1]))
    staged = Staged(worker.engine, [4 * PART], 2 * PART)
    staged.add(0)
    assert staged.begun() == []
    assert staged.ready(0, PART - 1) == []
    assert staged.ready(0, PART) == begin(0)
    assert staged.ready(0, 3 * PART + 5) == begin(PART, 2 * PART)
    assert staged.ready(0, 2 * PART) == [], "it never goes back"
    assert staged.ready(0, 4 * PART) == begin(3 * PART)
    received = [worker.peers[1].receive().header.part_offset for _ in range(4)]
    assert received == [0, PART, 2 * PART, 3 * PART]


def test_parts_start_when_a_stream_has_set_their_words(worker: Lone) -> None:
    """In the order in which the words were given, whatever is set first; and marks go round."""
    worker.declare(0, 3 * PART, spread(3 * PART, PART, [1]))
    staged = Staged(worker.engine, [3 * PART], PART)
    staged.add(0)
    watch, words = WordWatch(), np.zeros(3, np.uint32)
    for place, mark in enumerate((2**32 - 1, 2, 2)):
        word = words[place:].ctypes.data
        staged.collector.ready_when(watch, word, mark, 0, (place + 1) * PART)
    received = worker.peers[1].receive().header.part_offset
    assert received == 0, "0 comes after 2^32 - 1"
    words[2] = 2
    words[1] = 3
    assert [worker.peers[1].receive().header.part_offset for _ in range(2)] == [PART, 2 * PART]
    watch.stop()


def test_a_watch_that_has_stopped_acts_no_more_and_needs_no_collector(worker: Lone) -> None:
    worker.declare(0, PART, spread(PART, PART, [1]))
    staged = Staged(worker.engine, [PART], PART)
    mark = staged.add(0)
    watch, words = WordWatch(), np.zeros(1, np.uint32)
    staged.collector.ready_when(watch, words.ctypes.data, mark, 0, PART)
    watch.stop()
    words[0] = mark
    staged.collector.ready_when(watch, words.ctypes.data, mark, 0, PART)
    watch.stop()
    assert staged.begun() == []
    late, words = WordWatch(), np.zeros(1, np.uint32)
    other = Collector(worker.engine, None, [])
    other.ready_when(late, words.ctypes.data, 1, 0, PART)
    del other
    words[0] = 1
    staged.collector.ready_when(late, words.ctypes.data, 1, 0, PART)
    assert worker.peers[1].receive().header.part_offset == 0, "what comes after one that has gone is seen"


def test_what_is_not_ready_keeps_nobody_waiting_and_costs_no_credit(worker: Lone) -> None:
    """Tensor 0 is more urgent, but still on its accelerator."""
    worker.engine.set_credit(0, PART)
    for tensor in range(2):
        worker.declare(tensor, 2 * PART, spread(2 * PART, PART, [1]))
    staged = Staged(worker.engine, [2 * PART] * 2, PART)
    staged.add(0)
    staged.add(1)
    staged.ready(1, 2 * PART)
    assert [worker.peers[1].receive().header.tensor for _ in range(2)] == [1, 1]
    staged.ready(0, PART)
    assert worker.peers[1].receive().header.tensor == 0


def test_the_most_urgent_of_what_is_ready_leaves_first(worker: Lone) -> None:
    """With the link stuck, parts become ready in one order and leave in that of their priorities."""
    worker.declare(9, 64 * PART, [(0, 64 * PART, 1, EVERYONE, EVERYONE)])
    for tensor in range(3):
        worker.declare(tensor, 2 * PART, spread(2 * PART, PART, [1]))
    worker.submit(9, np.zeros(16 * PART, np.float32), rank=99)
    eventually(lambda: worker.is_stuck(1), "the link is stuck")
    staged = Staged(worker.engine, [2 * PART] * 3, PART)
    for place in range(3):
        staged.add(place)
    for place, num_bytes in ((2, PART), (1, 2 * PART), (0, PART), (2, 2 * PART)):
        staged.collector.ready(place, num_bytes)
    left: list[tuple[int, int]] = []
    while len(left) < 5:
        header = worker.peers[1].receive().header
        left += [(header.tensor, header.part_offset)] * (header.tensor != 9)
    assert left == [(0, 0), (1, 0), (1, PART), (2, 0), (2, PART)]


def test_bytes_may_be_ready_before_the_bucket_is_whole(worker: Lone) -> None:
    for tensor in range(2):
        worker.declare(tensor, 2 * PART, spread(2 * PART, PART, [1]))
    staged = Staged(worker.engine, [2 * PART] * 2, PART, [[0, 1]])
    staged.add(0)
    assert staged.ready(0, PART) == []
    staged.add(1)
    assert staged.begun() == begin(0)
    assert staged.ready(1, 2 * PART) == begin(0, PART, tensor=1)
    assert staged.ready(0, 2 * PART) == begin(PART)


def test_a_rank_without_a_gradient_says_so_when_its_memory_is_free(worker: Lone) -> None:
    """Its memory may still be read by a copy home of the step before: the sum must not come earlier."""
    worker.declare(0, PART, spread(PART, PART, [1]))
    staged = Staged(worker.engine, [PART], PART)
    staged.add(0, absent=True)
    assert staged.begun() == []
    assert staged.ready(0, PART) == begin(0)


# ---- home: the words ----


def test_a_piece_has_arrived_when_all_parts_that_touch_it_have(worker: Lone) -> None:
    worker.declare(0, 5 * PART, spread(5 * PART, PART, [1]))
    staged = Staged(worker.engine, [5 * PART], 3 * PART // 2)
    for step in range(2):
        mark = staged.add(0)
        assert mark == step + 1
        staged.collector.ready(0, 5 * PART)
        pushed = [worker.peers[1].receive() for _ in range(5)]
        # Pieces end at bytes 1.5, 3, 4.5 and 5 (in parts).
        for part, arrived in ((1, []), (0, [0]), (4, [0, 3]), (2, [0, 1, 3]), (3, [0, 1, 2, 3])):
            worker.peers[1].send(
                Header(kind=SUM, step=step, part_offset=part * PART, part_length=PART), pushed[part].payload
            )
            expected = [mark if piece in arrived else mark - 1 for piece in range(4)]
            eventually(lambda: staged.words[0].tolist() == expected, f"{expected}, not {staged.words[0]}")  # noqa: B023
        staged.end(0)


sizes = st.integers(1, 40).map(lambda items: 8 * items)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[tuple[int, list[Part]]], int, list[tuple[int, int, int]]]:
    """Tensors with their parts, the size of pieces, and what becomes ready in turn: (rank, tensor, bytes)."""
    tensors, turns = [], []
    for tensor in range(draw(st.integers(1, 3))):
        cuts = draw(st.lists(sizes, min_size=1, max_size=6))
        starts = np.cumsum([0, *cuts]).tolist()
        parts = [(starts[i], cuts[i], draw(st.integers(0, 1)), EVERYONE, EVERYONE) for i in range(len(cuts))]
        tensors.append((starts[-1], parts))
        for rank in range(2):
            marks = draw(st.lists(st.integers(0, starts[-1]), max_size=4))
            turns += [(rank, tensor, mark) for mark in (*sorted(marks), starts[-1])]
    return tensors, draw(st.integers(1, 400)), draw(st.permutations(turns))


@given(job=jobs(), credit_bytes=st.sampled_from([0, 8, 100]))
@settings(max_examples=60, deadline=None)
def test_whatever_becomes_ready_when_no_byte_leaves_early_and_all_arrive(
    job: tuple[list[tuple[int, list[Part]]], int, list[tuple[int, int, int]]], credit_bytes: int
) -> None:
    tensors, piece_bytes, turns = job
    with Mesh(2, trace=True) as mesh:
        for tensor, (num_bytes, parts) in enumerate(tensors):
            mesh.declare(tensor, num_bytes, "int64", parts)
        ranks = [Staged(engine, [size for size, _ in tensors], piece_bytes) for engine in mesh.workers]
        for rank in ranks:
            rank.engine.set_credit(0, credit_bytes)
            for place, memory in enumerate(rank.memory):
                memory.fill(0xEE)  # what nobody may send: it is not ready
                rank.add(place)
        offered: dict[tuple[int, int], list[int]] = {}
        water = dict.fromkeys(((rank, tensor) for rank in range(2) for tensor in range(len(tensors))), 0)
        for number, tensor, mark in turns:
            rank, before = ranks[number], water[number, tensor]
            water[number, tensor] = after = max(before, mark)
            items = np.arange(before // 8, after // 8, dtype=np.int64) * (2 * number + 1)
            rank.memory[tensor][before // 8 * 8 : after // 8 * 8].view(np.int64)[:] = items
            now = [
                offset
                for what, which, offset in rank.ready(tensor, after // 8 * 8)
                if (what, which) == ("ready", tensor)
            ]
            offered.setdefault((number, tensor), []).extend(now)
            assert offered[number, tensor] == [
                offset for offset, length, *_ in tensors[tensor][1] if offset + length <= after // 8 * 8
            ]
        for rank in ranks:
            for place, (num_bytes, _) in enumerate(tensors):
                rank.end(place)
                expected = np.arange(num_bytes // 8, dtype=np.int64) * 2
                np.testing.assert_array_equal(rank.memory[place].view(np.int64), expected)
                assert set(rank.words[place].tolist()) == {Collector.mark_of(0)}


# ---- what goes wrong ----


def is_spoiled(array: Array) -> bool:
    return bool(np.isnan(array.view(np.float32)).all() and np.isnan(array.view(np.float16)).all())


def test_a_failure_releases_every_word_and_nobody_takes_the_rest_for_an_average() -> None:
    """A peer is lost: what arrived stays, what is ready is spoiled at once, the rest when it has been copied."""
    with lone_worker() as worker:
        worker.declare(0, 4 * PART, spread(4 * PART, PART, [1]))
        staged = Staged(worker.engine, [4 * PART], PART)
        memory, words = staged.memory[0], staged.words[0]
        memory.view(np.float32)[:] = 1
        mark = staged.add(0)
        staged.collector.ready(0, 2 * PART)
        pushed = [worker.peers[1].receive() for _ in range(2)]
        worker.peers[1].send(Header(kind=SUM, part_offset=0, part_length=PART), pushed[0].payload)
        eventually(lambda: words[0] == mark, "the first piece is there")
        worker.peers[1].sock.close()
        task = staged.collector.sent(0, TIMEOUT_S)
        assert task is not None
        assert task.wait(TIMEOUT_S)
        assert task.failure is not None
        assert task.failure.kind == "peer_lost"
        assert words.tolist() == [mark, mark, UNSET, UNSET]
        assert (memory[:PART].view(np.float32) == 1).all()
        assert is_spoiled(memory[PART : 2 * PART])
        memory[2 * PART :].view(np.float32)[:] = 1  # the copy to the host goes on
        staged.collector.ready(0, 3 * PART)
        assert words.tolist() == [mark, mark, mark, UNSET]
        staged.collector.ready(0, 4 * PART)
        assert words.tolist() == [mark] * 4
        assert is_spoiled(memory[2 * PART :])
        # After the end: a step that is taken has failed when it begins.
        assert staged.add(0) == mark + 1
        staged.collector.ready(0, 4 * PART)
        assert words.tolist() == [mark + 1] * 4


def test_what_an_accelerator_has_yet_to_bring_is_nobodys_delay(worker: Lone) -> None:
    worker.declare(0, 2 * PART, spread(2 * PART, PART, [1]))
    staged = Staged(worker.engine, [2 * PART], PART)
    staged.add(0)
    staged.collector.ready(0, PART)
    assert staged.collector.overdue(0.0) == []
    staged.collector.ready(0, 2 * PART)
    assert staged.collector.overdue(0.0) == [(0, 0, [])]


def test_what_cannot_pass_in_pieces(worker: Lone) -> None:
    words = np.zeros(1, np.uint32)
    collector = Collector(worker.engine, None, [(0, "t0", PART, None), (1, "t1", PART, 7)])
    with pytest.raises(ValueError, match="a piece has no bytes"):
        collector.set_pieces(0, 0, words.ctypes.data)
    with pytest.raises(ValueError, match="at address 0"):
        collector.set_pieces(0, PART, 0)
    with pytest.raises(ValueError, match="'t1' needs a scale that the workers agree on"):
        collector.set_pieces(1, PART, words.ctypes.data)


def test_ranks_end_while_threads_of_the_driver_say_what_is_ready() -> None:
    """Every word is set in the end, whoever comes first."""
    size = 64 * PART
    with Mesh(2) as mesh, ThreadPoolExecutor(2) as pool:
        mesh.declare(0, size, "float32", spread(size, PART, range(2)))
        ranks = [Staged(engine, [size], PART) for engine in mesh.workers]
        for step in range(10):
            marks = [rank.add(0) for rank in ranks]
            gate = threading.Barrier(2)

            def copy(rank: Staged, gate: threading.Barrier = gate) -> None:
                gate.wait(TIMEOUT_S)
                for num_bytes in range(PART, size + 1, PART):
                    rank.collector.ready(0, num_bytes)

            copying = [pool.submit(copy, rank) for rank in ranks]
            if step == 9:
                mesh.engines[1].close()
            for each in copying:
                each.result(TIMEOUT_S)
            for rank, mark in zip(ranks, marks, strict=True):
                task = rank.collector.sent(0, TIMEOUT_S)
                assert task is not None
                assert task.wait(TIMEOUT_S)
                assert rank.words[0].tolist() == [mark] * 64


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="there is a driver")
def test_without_a_driver_its_functions_say_so(worker: Lone) -> None:
    worker.declare(0, PART, spread(PART, PART, [1]))
    staged = Staged(worker.engine, [PART], PART)
    with pytest.raises(RuntimeError, match=r"libcuda\.so\.1, has no cuStreamWaitValue32_v2, or is not there"):
        cuda_wait_for_word(0, staged.words[0].ctypes.data, 1)
    with pytest.raises(RuntimeError, match="has no cuStreamWriteValue32_v2"):
        cuda_write_word(0, staged.words[0].ctypes.data, 1)
