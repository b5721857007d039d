"""Codecs on a gradient's device: the host's bytes, bit for bit, whatever the numbers and however they are cut."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import legato.torch as lg
from legato._native import place_of
from legato.compression import Scheme, parse, select
from legato.exchange import NativePlanner
from legato.testing.log import said
from legato.torch.compression import compressor_of
from legato.torch.sync import native
from legato.torch.sync.device_codecs import Coder, device_codec
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.synchronizer import Slot
from tests.golden_codecs import items_whose_order_matters
from tests.torch.crew import Crew
from tests.torch.streams import DELAY_CYCLES, delayed

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
CODECS = [
    *("fp16", "bf16", "onebit", "onebit:scaling=false", "randomk:0.1", "randomk:0.9,seed=7", "randomk:1"),
    *("dithering:1", "dithering:7,normalize=l2", "dithering:127,seed=3"),
    *("dithering:1,partition=natural", "dithering:4,partition=natural,normalize=l2,seed=18446744073709551615"),
    "dithering:32,partition=natural",
]
TENSOR, STEP, RANK = 5, 11, 2


def scheme_of(text: str) -> Scheme:
    scheme = parse(text)
    assert scheme is not None
    return scheme


def coder_of(scheme: Scheme, num_items: int) -> Coder:
    codec = device_codec(scheme, num_items)
    assert codec is not None
    return Coder(scheme, codec, TENSOR, num_items, RANK)


def cut(num_items: int, part_items: int) -> list[tuple[int, int]]:
    return [(4 * begin, 4 * min(part_items, num_items - begin)) for begin in range(0, num_items, part_items)]


def on_host(scheme: Scheme, items: NDArray[np.float32], parts: Sequence[tuple[int, int]]) -> tuple[bytes, bytes]:
    """What the native codec makes of the parts, and of that again."""
    kernel = scheme.codec.push(len(items))
    encoded, decoded = b"", b""
    for offset, length in parts:
        part = items[offset // 4 : (offset + length) // 4]
        data, back = np.zeros(kernel.encoded_bytes(len(part)), np.uint8), np.zeros_like(part)
        place = place_of(TENSOR, STEP, offset)
        kernel.encode(data, part, place=place, contributor=RANK)
        kernel.decode(back, data, place=place, contributor=RANK)
        encoded, decoded = encoded + data.tobytes(), decoded + back.tobytes()
    return encoded, decoded


def check(text: str, items: NDArray[np.float32], part_items: int, device: str) -> None:
    scheme, parts = scheme_of(text), cut(len(items), part_items)
    coder = coder_of(scheme, len(items))
    data = coder.encode(torch.from_numpy(items.copy()).to(device), STEP, parts)
    decoded = coder.decode(data, STEP, parts).cpu().numpy()
    host_data, host_decoded = on_host(scheme, items, parts)
    assert coder.num_bytes(parts) == data.numel() == len(host_data) <= coder.most_bytes
    # All NaN are one, which casts and signs of NaN leave to the processor.
    ours, theirs = decoded.view(np.uint32).copy(), np.frombuffer(host_decoded, np.uint32).copy()
    for each in (ours, theirs):
        each[np.isnan(each.view(np.float32))] = 0x7FC00000
    np.testing.assert_array_equal(ours, theirs, err_msg="decoded")
    if not (text in ("fp16", "bf16") and np.isnan(items).any()):
        np.testing.assert_array_equal(data.cpu().numpy(), np.frombuffer(host_data, np.uint8), err_msg="encoded")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("num_items", "part_items"), [(1, 1), (33, 32), (5000, 1200), (100_003, 7001), (4096, 9999)])
@pytest.mark.parametrize("text", CODECS)
def test_makes_the_hosts_bytes(text: str, num_items: int, part_items: int, device: str) -> None:
    generator = np.random.default_rng(num_items)
    scales = 10.0 ** generator.uniform(-12, 12, num_items)
    check(text, (generator.standard_normal(num_items) * scales).astype(np.float32), part_items, device)
    check(text, generator.standard_normal(num_items, np.float32), part_items, device)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_are_made_in_the_hosts_order(device: str) -> None:
    for items in items_whose_order_matters():
        check("onebit", items, len(items), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("partition", ["linear", "natural"])
def test_every_factor_is_rounded_as_on_the_host(partition: str, device: str) -> None:
    """Of millions of numbers, a few lie where one bit of it decides."""
    items = np.random.default_rng(0).uniform(-1, 1, 8_000_000).astype(np.float32)
    levels = 127 if partition == "linear" else 32
    check(f"dithering:{levels},partition={partition}", items, 50_000, device)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=150)
@given(
    text=st.sampled_from(CODECS),
    values=st.lists(
        st.one_of(
            st.floats(width=32),
            st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4028234663852886e38, np.nan, -np.nan, np.inf, -np.inf]),
        ),
        min_size=1,
        max_size=70,
    ),
    part_items=st.integers(1, 80),
)
def test_makes_the_hosts_bytes_of_any_numbers(text: str, values: list[float], part_items: int, device: str) -> None:
    check(text, np.array(values, np.float32), part_items, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("text", CODECS)
def test_bytes_that_never_came_are_not_taken_for_numbers(text: str, device: str) -> None:
    """A failed average is all ones (native/engine/worker/pieces.hpp): every part of it has NaN."""
    coder, parts = coder_of(scheme_of(text), 5000), cut(5000, 1000)
    spoiled = torch.full((coder.num_bytes(parts),), 0xFF, dtype=torch.uint8, device=device)
    decoded = coder.decode(spoiled, STEP, parts)
    assert all(decoded[offset // 4 : (offset + length) // 4].isnan().any() for offset, length in parts)


@pytest.mark.cuda
def test_what_is_remembered_on_one_stream_is_waited_for_on_another() -> None:
    scheme, parts = scheme_of("onebit+ef+nesterov"), cut(100_000, 30_000)
    gradients = [torch.randn(100_000, generator=torch.Generator().manual_seed(step)) for step in range(6)]
    on_device = [gradient.cuda() for gradient in gradients]
    ours, theirs, streams = coder_of(scheme, 100_000), coder_of(scheme, 100_000), [torch.cuda.Stream() for _ in "ab"]
    torch.cuda.synchronize()
    encoded = []
    for step, gradient in enumerate(on_device):
        with torch.cuda.stream(streams[step % 2]):
            torch.cuda._sleep(DELAY_CYCLES * (step % 2 == 0))
            encoded.append(ours.encode(gradient, step, parts))
    torch.cuda.synchronize()
    for step, gradient in enumerate(gradients):
        assert torch.equal(encoded[step].cpu(), theirs.encode(gradient, step, parts))


def _memory_of_graphs() -> bool:
    """Whether what is remembered of gradients that have a graph keeps it."""
    job = lg.init()
    slot = Slot("p", nn.Parameter(torch.zeros(100)))
    with patch.object(native, "codes_on", lambda _: True):
        synchronizer = NativeSynchronizer(
            job.group, job.name("graph"), [slot], compressor_of(None), select("onebit+ef", 0)
        )
    synchronizer.submit(0, torch.ones(100, requires_grad=True) * 2)
    assert synchronizer.wait(0)
    synchronizer.close()
    owed = synchronizer._coders[0]._owed
    assert owed is not None
    return owed.requires_grad


def test_gradients_may_have_a_graph(crew: Crew) -> None:
    assert crew.run(_memory_of_graphs) == [False, False]


# ---- through the engine ----

SIZES = (10_007, 100)
PART_BYTES = 4096
STEPS = 6


class _Round:
    """A gate behind which members have just agreed on another plan."""

    def __init__(self, gate: Any, agree: Callable[[], None]) -> None:
        self._gate = gate
        self._agree = agree

    def admit(self, step: int) -> bool:
        del step
        return False

    def begin(self, step: int, action: Callable[[], None]) -> None:
        self._agree()
        self._gate.begin(step, action)


def _arriving(values: torch.Tensor, device: str) -> torch.Tensor:
    """On an accelerator, a gradient that the stream has yet to compute."""
    if device == "cpu":
        return values
    gradient = torch.full_like(values, torch.nan, device=device)
    torch.cuda._sleep(DELAY_CYCLES)
    return gradient.copy_(values.pin_memory(), non_blocking=True)


def _late_averages(compression: str, coding: Sequence[int], device: str) -> tuple[list[torch.Tensor], list[int]]:
    """On an accelerator, each hand-over between streams is late at random."""
    with delayed(None, seed=sum(coding)) if device == "cuda" else contextlib.nullcontext():
        return _averages(compression, coding, device)


def _averages(compression: str, coding: Sequence[int], device: str) -> tuple[list[torch.Tensor], list[int]]:
    """Of some steps, where these ranks encode on the device, and the bytes of a tensor that they gave the engine in
    each. In step 1 rank 2 has an infinity, in step 2 rank 0 has no gradient, in step 3 nobody has. From step 1 on, and
    again from step 4 on, while gradients come, plans cut the tensors otherwise."""
    job = lg.init()
    slots = [Slot(f"p{size}", nn.Parameter(torch.zeros(size, device=device))) for size in SIZES]
    with patch.object(native, "codes_on", lambda _: job.rank in coding):
        synchronizer = NativeSynchronizer(
            job.group,
            job.name("coded"),
            slots,
            compressor_of(None),
            select(compression, 0),
            planner=NativePlanner(partition_bytes=PART_BYTES),
            runs_ahead=True,
        )
    assert len(synchronizer._coders) == (len(SIZES) if job.rank in coding else 0)
    exchange = synchronizer._exchange

    def cut(partition_bytes: int, step: int) -> None:
        plan = exchange.plan_at(step)
        parts = (partition_bytes,) * len(plan.partition_bytes)
        job.group.set_plan(replace(plan, partition_bytes=parts), step, everyone=True)
        exchange._gate = exchange_gate

    exchange_gate = exchange._gate
    averages, sent = [], []
    for step in range(STEPS):
        if step == 1:
            cut(3 * PART_BYTES, step)
        if step == 4:
            if job.rank in coding:
                exchange._gate = _Round(exchange_gate, lambda: cut(2 * PART_BYTES, 4))  # type: ignore[assignment]
            else:
                cut(2 * PART_BYTES, step)
        for index, size in enumerate(SIZES):
            is_absent = step == 3 or (step == 2 and job.rank == 0)
            generator = torch.Generator().manual_seed(100 * step + 10 * index + job.rank)
            values = torch.randn(size, generator=generator)
            values[7] = torch.inf if step == 1 and job.rank == 2 else values[7]
            synchronizer.submit(index, None if is_absent else _arriving(values, device))
        passage = synchronizer._passage(0)
        sent.append(4 * SIZES[0] if passage is None else passage.wire.nbytes)  # None: from the gradient's own memory
        for index in range(len(SIZES)):
            has_average = synchronizer.wait(index)
            assert has_average == (step != 3)
            result = synchronizer.result(index)
            averages += [result.cpu()] if has_average else []
    synchronizer.confirm()
    synchronizer.close()
    return averages, sent


def assert_equal(averages: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    torch.testing.assert_close(averages, expected, rtol=0.0, atol=0.0, equal_nan=True)
    assert all(average.isfinite().all() for average in averages[2 * len(SIZES) :]), "an infinity is forgotten"


SCHEMES = [
    *("fp16", "bf16+ef", "onebit", "onebit+ef+nesterov:0.5", "randomk:0.2", "randomk:0.2,seed=9+ef"),
    *("dithering:7+ef", "dithering:3,partition=natural,normalize=l2+ef+nesterov"),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compression", SCHEMES)
def test_ranks_that_encode_on_the_device_get_the_averages_of_those_that_do_not(
    crew: Crew, compression: str, device: str
) -> None:
    expected, sent = crew.run(_averages, compression, (), "cpu", size=3)[0]
    assert sent == [4 * SIZES[0]] * STEPS
    kernel = scheme_of(compression).codec.push(SIZES[0])
    partitions = [PART_BYTES, *[3 * PART_BYTES] * 3, *[2 * PART_BYTES] * 2]
    encoded = [sum(kernel.encoded_bytes(length // 4) for _, length in cut(SIZES[0], each // 4)) for each in partitions]
    for coding in ((0, 1, 2), (1,)):
        results = crew.run(_late_averages, compression, coding, device, size=3)
        for rank, (averages, sent) in enumerate(results):
            assert sent == (encoded if rank in coding else [4 * SIZES[0]] * STEPS)
            assert_equal(averages, expected)


@pytest.mark.cuda
def test_what_the_host_encodes_comes_in_pieces_too(crew: Crew) -> None:
    expected, _ = crew.run(_averages, "topk:0.1+ef", (), "cpu", size=3)[0]
    for averages, sent in crew.run(_late_averages, "topk:0.1+ef", (), "cuda", size=3):
        assert sent == [4 * SIZES[0]] * STEPS
        assert_equal(averages, expected)


def _trained(compression: str, coding: bool) -> tuple[list[float], list[float]]:
    """Weights and norms of a model with parameters in another order than their dimensions', clipped."""
    lg.init()
    torch.manual_seed(0)
    first, last = nn.Conv2d(2, 3, 3), nn.Linear(48, 5)
    first.weight.data = first.weight.data.contiguous(memory_format=torch.channels_last)
    last.weight.data = last.weight.data.t().contiguous().t()
    model = nn.Sequential(first, nn.Flatten(), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with patch.object(native, "codes_on", lambda _: coding):
        lg.schedule(model, optimizer, transport="native", tuner="off", compression=compression, min_compress_bytes=0)
    norms = []
    for step in range(5):
        inputs = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(10 * step + lg.rank()))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        norms.append(lg.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
    lg.unschedule(model)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist(), norms


@pytest.mark.parametrize("compression", ["onebit+ef", "dithering:7+ef", "fp16+ef"])
def test_training_and_clipping_are_the_same(crew: Crew, compression: str) -> None:
    """What owners measure of averages is what workers decode, wherever that is."""
    assert crew.run(_trained, compression, True) == crew.run(_trained, compression, False)


def _said_on_an_accelerator() -> list[str]:
    lg.init()
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)).cuda()
    with said("legato.torch.sync.native") as lines:
        lg.schedule(
            model,
            torch.optim.SGD(model.parameters()),
            transport="native",
            tuner="off",
            compression={"0.*": "topk:0.1", "1.*": "onebit"},
        )
    lg.unschedule(model)
    return lines


@pytest.mark.cuda
def test_codecs_that_work_on_the_host_say_so_once(crew: Crew) -> None:
    for lines in crew.run(_said_on_an_accelerator):
        [line] = lines
        assert "codec topk works on the host" in line
