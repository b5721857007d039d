"""Encoded tensors through the engine: equal to the golden model bit for bit, on every rank, whoever serves."""

from typing import Any

import numpy as np
import pytest

from legato._native import Codec, Coding
from tests import golden_codecs as golden
from tests.engine.mesh import TIMEOUT_S, Mesh, finish, spread
from tests.golden_codecs import Floats, Golden
from tests.golden_sum import GoldenSum

NUM_ITEMS = 10_007
PART_ITEMS = 3_000
NUM_WORKERS = 3

Pair = tuple[Codec, Golden]
CODECS: dict[str, tuple[Pair, Pair]] = {
    "fp16": ((Codec.fp16(), golden.Fp16()), (Codec.fp16(), golden.Fp16())),
    "bf16": ((Codec.bf16(), golden.Bf16()), (Codec.bf16(), golden.Bf16())),
    "onebit": ((Codec.onebit(True), golden.OneBit()), (Codec.onebit(True), golden.OneBit())),
    "topk": ((Codec.topk(0.02), golden.TopK(0.02)), (Codec.topk(0.06), golden.TopK(0.06))),
    "topk, raw sums": ((Codec.topk(0.3), golden.TopK(0.3)), (Codec.raw(), golden.Raw32())),
    "randomk": ((Codec.randomk(0.1, 5), golden.RandomK(0.1, 5)),) * 2,
    "dithering": ((Codec.dithering(7, "linear", "l2", 5), golden.Dithering(7, "linear", "l2", 5)),) * 2,
    "natural dithering": ((Codec.dithering(5, "natural", "max", 1), golden.Dithering(5, "natural", "max", 1)),) * 2,
}


def gradients(step: int, num_workers: int = NUM_WORKERS) -> list[Floats]:
    generator = np.random.default_rng(step)
    return [generator.standard_normal(NUM_ITEMS, np.float32) for _ in range(num_workers)]


@pytest.mark.parametrize(
    ("num_servers", "serving"),
    [pytest.param(0, range(3), id="joint"), pytest.param(2, range(3, 5), id="separate"), pytest.param(1, range(4))],
)
@pytest.mark.parametrize("name", CODECS)
def test_equals_the_golden_model(name: str, num_servers: int, serving: range) -> None:
    (push, golden_push), (pull, golden_pull) = CODECS[name]
    for feeds_back in (False, True):
        options: dict[str, Any] = {
            "feeds_back": feeds_back,
            "server_feeds_back": feeds_back,
            "momentum": 0.9 if feeds_back else 0.0,
        }
        model = GoldenSum(
            push=golden_push, pull=golden_pull, num_workers=NUM_WORKERS, part_items=PART_ITEMS, average=True, **options
        )
        with Mesh(NUM_WORKERS, num_servers, chunk_bytes=1024) as mesh:
            coding = Coding(push=push, pull=pull, **options)
            mesh.declare(0, 4 * NUM_ITEMS, "float32", spread(4 * NUM_ITEMS, 4 * PART_ITEMS, serving), coding)
            for step in range(4):
                sources = gradients(step)
                expected = model.step(step, sources)
                for result in mesh.push_pull(0, step, sources, reduction="average"):
                    np.testing.assert_array_equal(result, expected)


def test_in_place_and_beside_plain_tensors() -> None:
    model = GoldenSum(push=golden.Fp16(), pull=golden.Fp16(), num_workers=4, part_items=2_000)
    with Mesh(4, kind="tcp", num_lanes=2, num_io_threads=2) as mesh:
        coding = Coding(push=Codec.fp16(), pull=Codec.fp16())
        mesh.declare(0, 4 * NUM_ITEMS, "float32", spread(4 * NUM_ITEMS, 8_000, range(4)), coding)
        mesh.declare(1, 4 * NUM_ITEMS, "float32", spread(4 * NUM_ITEMS, 8_000, range(4)))
        encoded, plain = gradients(0, 4), [np.full(NUM_ITEMS, rank, np.float32) for rank in range(4)]
        expected = model.step(0, encoded)
        finish([*mesh.submit(0, 0, encoded, encoded, rank=1), *mesh.submit(1, 0, plain, plain)])
        for array in encoded:
            np.testing.assert_array_equal(array, expected)
        for array in plain:
            np.testing.assert_array_equal(array, np.full(NUM_ITEMS, 6))


def test_a_new_layout_keeps_what_workers_remember() -> None:
    """The worker's memory is of the tensor, so it survives other parts; how bf16 rounds depends on no part."""
    model = GoldenSum(push=golden.Bf16(), pull=golden.Raw32(), num_workers=2, part_items=NUM_ITEMS, feeds_back=True)
    with Mesh(2) as mesh:
        coding = Coding(push=Codec.bf16(), pull=Codec.raw(), feeds_back=True)
        mesh.declare(0, 4 * NUM_ITEMS, "float32", spread(4 * NUM_ITEMS, 8_000, range(2)), coding)
        mesh.lay_out(0, 2, spread(4 * NUM_ITEMS, 24_000, range(2)))
        for step in range(4):
            sources = gradients(step, 2)
            expected = model.step(step, sources)
            for result in mesh.push_pull(0, step, sources):
                np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("absent", [[0], [1, 2], [0, 1, 2]])
def test_absent_workers(absent: list[int]) -> None:
    with Mesh(3) as mesh:
        coding = Coding(push=Codec.topk(0.1), pull=Codec.topk(0.3), feeds_back=True)
        mesh.declare(0, 4 * NUM_ITEMS, "float32", spread(4 * NUM_ITEMS, 4 * PART_ITEMS, range(3)), coding)
        sources, results = gradients(0), [np.zeros(NUM_ITEMS, np.float32) for _ in range(3)]
        handles = mesh.submit(0, 0, sources, results, each=[{"absent": rank in absent} for rank in range(3)])
        finish(handles)
        assert all(handle.empty == (len(absent) == 3) for handle in handles)
        if len(absent) == 3:
            return
        model = GoldenSum(push=golden.TopK(0.1), pull=golden.TopK(0.3), num_workers=3, part_items=PART_ITEMS)
        expected = model.step(0, [None if rank in absent else sources[rank] for rank in range(3)])
        for result in results:
            np.testing.assert_array_equal(result, expected)


def test_the_credit_counts_what_travels() -> None:
    with Mesh(2, trace=True) as mesh:
        mesh.engines[0].set_credit(0, 1)
        coding = Coding(push=Codec.onebit(True), pull=Codec.onebit(True))
        mesh.declare(0, 1 << 20, "float32", spread(1 << 20, 1 << 16, [1]), coding)
        mesh.push_pull(0, 0, [np.ones(1 << 18, np.float32)] * 2)
        assert mesh.engines[0].statistics()["peak_in_flight_bytes"] == Codec.onebit(True).encoded_bytes(1 << 14)


def test_nan_arrives_as_nan_and_is_forgotten() -> None:
    with Mesh(2) as mesh:
        coding = Coding(push=Codec.onebit(True), pull=Codec.onebit(True), feeds_back=True, server_feeds_back=True)
        mesh.declare(0, 400, "float32", spread(400, 400, [0]), coding)
        sources = [np.ones(100, np.float32), np.full(100, np.nan, np.float32)]
        for result in mesh.push_pull(0, 0, sources):
            assert np.all(np.isnan(result))
        for result in mesh.push_pull(0, 1, [np.ones(100, np.float32)] * 2):
            np.testing.assert_array_equal(result, np.full(100, 2.0))


def test_an_agreed_scale() -> None:
    """The scale comes from a task before; the server sums whole numbers and gives back their rounded average."""
    with Mesh(3) as mesh:
        coding = Coding(push=Codec.int8(), pull=Codec.int8(), has_agreed_scale=True)
        mesh.declare(0, 4, "float32", spread(4, 4, [0]))
        mesh.declare(1, 4 * NUM_ITEMS, "float32", spread(4 * NUM_ITEMS, 4 * PART_ITEMS, range(3)), coding)
        sources = gradients(0)
        scales = [np.array([np.abs(source).max()], np.float32) for source in sources]
        scale = np.max(scales)
        factor, unit = np.float32(127) / scale, scale / np.float32(127)
        whole = np.rint(sum(np.rint(source * factor) for source in sources) / np.float32(3))
        for reduction, times in (("average", 1), ("sum", 3)):
            step = times
            first = mesh.submit(0, step, scales, scales, reduction="max")
            results = [np.zeros(NUM_ITEMS, np.float32) for _ in range(3)]
            each = [{"after": handle, "scale": array.ctypes.data} for handle, array in zip(first, scales, strict=True)]
            finish(mesh.submit(1, step, sources, results, reduction=reduction, each=each))
            for result in results:
                np.testing.assert_array_equal(result, whole.astype(np.float32) * unit * np.float32(times))


def test_what_cannot_be() -> None:
    with Mesh(2) as mesh:
        engine, coding = mesh.engines[0], Coding(push=Codec.fp16(), pull=Codec.fp16())
        with pytest.raises(ValueError, match="int32: codecs are for float32"):
            engine.declare(7, "whole", 400, "int32", coding)
        engine.declare(8, "one writer", 400, "float32", coding)
        with pytest.raises(ValueError, match="everybody must write and read"):
            engine.lay_out(8, 0, [(0, 400, 0, 1, -1)])
        mesh.declare(0, 400, "float32", spread(400, 400, [0]), coding)
        source = np.zeros(100, np.float32)
        with pytest.raises(ValueError, match="summed or averaged"):
            mesh.push_pull(0, 0, [source] * 2, reduction="max")
        scaled = Coding(push=Codec.int8(), pull=Codec.int8(), has_agreed_scale=True)
        mesh.declare(1, 400, "float32", spread(400, 400, [0]), scaled)
        with pytest.raises(ValueError, match="needs a scale"):
            mesh.push_pull(1, 0, [source] * 2)


def test_another_codec_than_declared_ends_the_connection() -> None:
    with Mesh(2, heartbeat_s=1.0) as mesh:
        codings = [Coding(push=Codec.fp16(), pull=Codec.fp16()), Coding(push=Codec.bf16(), pull=Codec.bf16())]
        for engine, coding in zip(mesh.engines, codings, strict=True):
            engine.declare(0, "x", 400, "float32", coding)
        mesh.lay_out(0, 0, spread(400, 400, [0]))
        handles = mesh.submit(0, 0, [np.zeros(100, np.float32)] * 2, [np.zeros(100, np.float32) for _ in range(2)])
        for handle in handles:
            assert handle.wait(TIMEOUT_S)
            assert handle.failure is not None
        assert "another codec than declared" in str(handles[0].failure)
