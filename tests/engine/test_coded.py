"""Tensors that come encoded, as an accelerator encodes them: the engine sends and brings what it is given."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from legato._native import Codec, Coding, Collector, Engine
from tests.engine.lone import Lone
from tests.engine.mesh import TIMEOUT_S, Mesh, Part, spread
from tests.golden_codecs import Floats, place_of

NUM_ITEMS, PART_ITEMS = 10_007, 3_000
NUM_BYTES = 4 * NUM_ITEMS
Bytes = NDArray[np.uint8]
CODECS = {
    "onebit": Codec.onebit(True),
    "randomk": Codec.randomk(0.1, 5),
    "dithering": Codec.dithering(7, "linear", "max", 5),
    "bf16": Codec.bf16(),
}


def encoded(codec: Codec, items: Floats, parts: Sequence[Part], *, step: int, rank: int) -> Bytes:
    data = []
    for offset, length, *_ in parts:
        part = items[offset // 4 : (offset + length) // 4]
        data.append(np.zeros(codec.encoded_bytes(len(part)), np.uint8))
        codec.encode(data[-1], part, place=place_of(0, step, offset), contributor=rank)
    return np.concatenate(data)


def decoded(codec: Codec, data: Bytes, parts: Sequence[Part], *, step: int) -> Floats:
    items, begin = [], 0
    for offset, length, *_ in parts:
        items.append(np.zeros(length // 4, np.float32))
        end = begin + codec.encoded_bytes(length // 4)
        codec.decode(items[-1], data[begin:end], place=place_of(0, step, offset))
        begin = end
    assert begin == len(data)
    return np.concatenate(items)


def gradient(step: int, rank: int) -> Floats:
    return np.random.default_rng(10 * step + rank).standard_normal(NUM_ITEMS, np.float32)


def collector_of(engine: Engine) -> Collector:
    collector = Collector(engine, None, [(0, "t0", NUM_BYTES, None)])
    collector.follow(0, [([0], 0, 0)])
    return collector


def end(collector: Collector) -> tuple[float, float] | None:
    """Of the newest step, its measure."""
    task = collector.sent(0, TIMEOUT_S)
    assert task is not None
    assert task.wait(TIMEOUT_S)
    assert task.failure is None, task.failure
    return task.measure


@pytest.mark.parametrize(
    ("num_servers", "serving"), [pytest.param(0, range(3), id="joint"), pytest.param(2, range(3, 5), id="separate")]
)
@pytest.mark.parametrize("name", CODECS)
def test_is_what_the_engine_would_have_made(name: str, num_servers: int, serving: range) -> None:
    """Ranks 0 and 2 come encoded, rank 1 does not, and has no gradient in step 2; step 3 is cut otherwise."""
    codec = CODECS[name]
    layouts = [spread(NUM_BYTES, 4 * PART_ITEMS, serving), spread(NUM_BYTES, 8 * PART_ITEMS, serving)]
    with Mesh(3, num_servers, chunk_bytes=1024) as mesh, Mesh(3, num_servers, chunk_bytes=1024) as other:
        for each in (mesh, other):
            coding = Coding(push=codec, pull=codec, server_feeds_back=name != "bf16")
            each.declare(0, NUM_BYTES, "float32", layouts[0], coding)
            each.lay_out(0, 3, layouts[1])
        collectors = [collector_of(engine) for engine in mesh.workers]
        for rank in (0, 2):
            collectors[rank].set_coded(0, NUM_BYTES)
        for collector in collectors:
            collector.set_measured(True)
        for step in range(4):
            parts = layouts[step == 3]
            gradients = [gradient(step, rank) for rank in range(3)]
            absent = [{"absent": step == 2 and rank == 1} for rank in range(3)]
            expected = [np.zeros(NUM_ITEMS, np.float32) for _ in range(3)]
            for handle in other.submit(0, step, gradients, expected, reduction="average", each=absent):
                assert handle.wait(TIMEOUT_S)
            memory = [encoded(codec, gradients[rank], parts, step=step, rank=rank) for rank in range(3)]
            memory[1] = gradients[1].view(np.uint8)
            for rank, collector in enumerate(collectors):
                address, num_bytes = memory[rank].ctypes.data, memory[rank].nbytes
                assert collector.next_step(0) == step
                collector.add(0, address, num_bytes, absent[rank]["absent"], memory[rank])
            measures = [end(collector) for collector in collectors]
            assert measures[0] is not None
            assert measures[0][1] == np.abs(expected[0]).max()
            assert measures == [measures[0]] * 3
            for rank in range(3):
                ours = memory[rank].view(np.float32) if rank == 1 else decoded(codec, memory[rank], parts, step=step)
                np.testing.assert_array_equal(ours, expected[0])


def test_pieces_of_what_travels() -> None:
    """Watermarks and words count encoded bytes: parts of 36 here, in pieces of 100."""
    codec = Codec.onebit(True)
    parts = spread(4 * 1000, 4 * 250, [1])
    with Lone(num_workers=1, num_members=2, trace=True) as worker:
        worker.engine.declare(0, "t0", 4000, "float32", Coding(push=codec, pull=codec))
        worker.engine.lay_out(0, 0, parts)
        collector = Collector(worker.engine, None, [(0, "t0", 4000, None)])
        collector.follow(0, [([0], 0, 0)])
        collector.set_coded(0, 8000)
        words = np.zeros(80, np.uint32)
        collector.set_pieces(0, 100, words.ctypes.data)
        data = encoded(codec, np.ones(1000, np.float32), parts, step=0, rank=0)
        assert data.nbytes == 4 * 36
        sent = data.tobytes()
        collector.add(0, data.ctypes.data, data.nbytes, False, data)
        started = []
        for ready in (35, 36, 107, 108, 144):
            collector.ready(0, ready)
            started.append(len([what for _, what, *_ in worker.engine.take_events() if what == "start"]))
        assert started == [0, 1, 1, 1, 1]
        frames = [worker.peers[1].receive() for _ in range(4)]
        assert b"".join(bytes(frame.payload) for frame in frames) == sent
        worker.peers[1].sock.close()
        task = collector.sent(0, TIMEOUT_S)
        assert task is not None
        assert task.wait(TIMEOUT_S)
        assert task.failure is not None
        assert words[:3].tolist() == [1, 1, 0], "both pieces, and nothing beyond them"
        assert (data == 0xFF).all()
        assert np.isnan(decoded(codec, data, parts, step=0)).all()


def test_what_the_engine_encodes_may_come_in_pieces() -> None:
    """Parts are encoded as they become ready, and pieces have arrived when their parts have been decoded."""
    coding = Coding(push=Codec.topk(0.1), pull=Codec.topk(0.2), feeds_back=True)
    parts = spread(NUM_BYTES, 4 * PART_ITEMS, range(2))
    with Mesh(2) as mesh, Mesh(2) as other:
        for each in (mesh, other):
            each.declare(0, NUM_BYTES, "float32", parts, coding)
        collectors = [collector_of(engine) for engine in mesh.workers]
        words = [np.zeros(3, np.uint32) for _ in range(2)]
        for collector, each_word in zip(collectors, words, strict=True):
            collector.set_pieces(0, 16_384, each_word.ctypes.data)
        for step in range(3):
            gradients = [gradient(step, rank) for rank in range(2)]
            expected = other.push_pull(0, step, gradients, reduction="average")
            memory = [np.full(NUM_ITEMS, np.nan, np.float32) for _ in range(2)]
            for collector, mine in zip(collectors, memory, strict=True):
                collector.add(0, mine.ctypes.data, mine.nbytes, False, mine)
            for begin, until in ((0, 5_000), (5_000, NUM_ITEMS)):
                for rank, collector in enumerate(collectors):
                    memory[rank][begin:until] = gradients[rank][begin:until]
                    collector.ready(0, 4 * until)
            for rank, collector in enumerate(collectors):
                end(collector)
                assert words[rank].tolist() == [Collector.mark_of(step)] * 3
                np.testing.assert_array_equal(memory[rank], expected[rank])


def test_what_cannot_come_encoded() -> None:
    with Mesh(2) as mesh:
        codings = [
            Coding(push=Codec.topk(0.1), pull=Codec.topk(0.2)),
            Coding(push=Codec.int8(), pull=Codec.int8(), has_agreed_scale=True),
            Coding(push=Codec.onebit(True), pull=Codec.onebit(True)),
        ]
        parts = spread(4000, 1000, range(2))
        for tensor, coding in enumerate(codings):
            mesh.declare(tensor, 4000, "float32", parts, coding)
        mesh.declare(3, 4000, "float32", parts)
        collector = Collector(mesh.engines[0], None, [(tensor, f"t{tensor}", 4000, None) for tensor in range(4)])
        collector.follow(0, [([tensor], 0, 0) for tensor in range(4)])
        memory = np.zeros(8000, np.uint8)
        for tensor in range(4):
            collector.set_coded(tensor, 4000)
        for tensor, num_bytes, why in (
            (0, 800, "its sums have another length"),
            (1, 1000, "needs a scale"),
            (2, 143, "144 bytes when it is encoded for step 0, but its memory has 143"),
            (2, 4001, "4000 bytes, but its memory has 4001"),
            (3, 4000, "cannot come encoded"),
        ):
            with pytest.raises(ValueError, match=why):
                collector.add(tensor, memory.ctypes.data, num_bytes, False, memory)
