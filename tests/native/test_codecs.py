"""Every codec against its golden model, bit for bit, on every instruction set of this machine."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato._native import Codec, available_instruction_sets, instruction_set, set_instruction_set
from tests import golden_codecs as golden
from tests.golden_codecs import Context, Floats, Golden, Raw

CODECS: dict[str, tuple[Codec, Golden]] = {
    "raw": (Codec.raw(), golden.Raw32()),
    "fp16": (Codec.fp16(), golden.Fp16()),
    "bf16": (Codec.bf16(), golden.Bf16()),
    "onebit": (Codec.onebit(True), golden.OneBit()),
    "onebit without scaling": (Codec.onebit(False), golden.OneBit(scaling=False)),
    "topk 1 %": (Codec.topk(0.01), golden.TopK(0.01)),
    "topk half": (Codec.topk(0.5), golden.TopK(0.5)),
    "topk all": (Codec.topk(1.0), golden.TopK(1.0)),
    "randomk": (Codec.randomk(0.1, 7), golden.RandomK(0.1, 7)),
    "int8": (Codec.int8(), golden.Int8()),
    **{
        f"dithering {k} {levels} {norm}": (
            Codec.dithering(k, levels, norm, 3),
            golden.Dithering(k, levels, norm, 3),
        )
        for k, levels, norm in [
            (1, "linear", "max"),
            (7, "linear", "l2"),
            (127, "linear", "max"),
            (1, "natural", "max"),
            (4, "natural", "l2"),
            (32, "natural", "max"),
        ]
    },
}
SIZES = [1, 3, 31, 32, 33, 1000, 5000]


@pytest.fixture(params=available_instruction_sets(), autouse=True, scope="module")
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    best = instruction_set()
    set_instruction_set(request.param)
    yield
    set_instruction_set(best)


def encoded(codec: Codec, items: Floats, context: Context) -> Raw:
    data = np.full(codec.encoded_bytes(len(items)), 0xA5, np.uint8)
    codec.encode(data, items, place=context.place, contributor=context.contributor, scale=context.scale)
    return data


def decoded(codec: Codec, data: Raw, num_items: int, context: Context) -> Floats:
    items = np.full(num_items, np.pi, np.float32)
    codec.decode(items, data, place=context.place, contributor=context.contributor, scale=context.scale)
    return items


def check(name: str, items: Floats, context: Context) -> None:
    codec, model = CODECS[name]
    data = encoded(codec, items, context)
    np.testing.assert_array_equal(data, model.encode(items, context), err_msg=f"{name}: encoded")
    ours, theirs = decoded(codec, data, len(items), context), model.decode(data, len(items), context)
    np.testing.assert_array_equal(ours, theirs, err_msg=f"{name}: decoded")
    np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[theirs == 0]))


@pytest.mark.parametrize("num_items", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_equals_the_golden_model(name: str, num_items: int) -> None:
    items = np.random.default_rng(num_items).standard_normal(num_items, np.float32)
    context = Context(place=golden.place_of(1, num_items, 4096), contributor=2, scale=float(np.abs(items).max()))
    check(name, items, context)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(CODECS)),
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=70),
    place=st.integers(0, 2**64 - 1),
)
def test_any_numbers(name: str, values: list[float], place: int) -> None:
    items = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        check(name, items, Context(place=place, contributor=1, scale=float(np.abs(items).max()) or 1.0))


def test_sums_are_made_in_their_order() -> None:
    scales = set()
    for items in golden.items_whose_order_matters():
        check("onebit", items, Context())
        scales.add(encoded(Codec.onebit(True), items, Context())[:4].tobytes())
    assert len(scales) == 2


@pytest.mark.parametrize("name", CODECS)
def test_zeros_stay_zeros(name: str) -> None:
    context = Context(scale=0.0)
    codec, _ = CODECS[name]
    items = decoded(codec, encoded(codec, np.zeros(100, np.float32), context), 100, context)
    np.testing.assert_array_equal(items, np.full(100, 1.0 if name == "onebit without scaling" else 0.0))


@pytest.mark.parametrize("name", [name for name in CODECS if name != "randomk"])
@pytest.mark.parametrize("value", [np.nan, -np.nan])
def test_nan_is_never_decoded_as_a_number(name: str, value: float) -> None:
    codec, _ = CODECS[name]
    items = np.ones(1000, np.float32)
    items[500] = value
    context = Context(scale=np.nan)  # what the largest of all magnitudes is then
    result = decoded(codec, encoded(codec, items, context), 1000, context)
    assert np.isnan(result[500])


@pytest.mark.parametrize("name", [name for name in CODECS if name.startswith(("onebit", "dithering", "int8"))])
def test_an_infinity_makes_everything_nan_under_a_scale(name: str) -> None:
    codec, _ = CODECS[name]
    items = np.ones(100, np.float32)
    items[50] = -np.inf
    context = Context(scale=np.inf)
    assert np.all(np.isnan(decoded(codec, encoded(codec, items, context), 100, context)))


def test_of_equal_magnitudes_the_first_are_kept() -> None:
    items = np.tile(np.array([1, -1], np.float32), 50)
    result = decoded(Codec.topk(0.1), encoded(Codec.topk(0.1), items, Context()), 100, Context())
    np.testing.assert_array_equal(np.flatnonzero(result), np.arange(10))


def test_dithering_is_right_on_average() -> None:
    items = np.linspace(-1, 1, 101, dtype=np.float32)
    for codec in (Codec.dithering(3, "linear", "max", 0), Codec.dithering(3, "natural", "max", 0)):
        contexts = [Context(place=golden.mix(trial)) for trial in range(4000)]
        results = [decoded(codec, encoded(codec, items, context), 101, context) for context in contexts]
        np.testing.assert_allclose(np.mean(results, axis=0), items, atol=0.04)


def test_randomk_comes_to_every_item() -> None:
    codec, items = Codec.randomk(0.25, 0), np.ones(64, np.float32)
    contexts = [Context(place=golden.mix(step)) for step in range(200)]
    times = sum(decoded(codec, encoded(codec, items, context), 64, context) for context in contexts)
    assert np.all(np.asarray(times) > 20)


def test_an_index_out_of_range_is_refused() -> None:
    data = encoded(Codec.topk(0.1), np.ones(100, np.float32), Context())
    data[:4] = 255
    with pytest.raises(ValueError, match="not of this codec"):
        decoded(Codec.topk(0.1), data, 100, Context())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Codec.topk(0.0),
        lambda: Codec.topk(1.5),
        lambda: Codec.randomk(float("nan"), 0),
        lambda: Codec.dithering(0, "linear", "max", 0),
        lambda: Codec.dithering(33, "natural", "max", 0),
        lambda: Codec.dithering(3, "cubic", "max", 0),
    ],
)
def test_parameters_out_of_range(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"density|levels|neither"):
        make()
