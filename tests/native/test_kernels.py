"""The kernels against numpy, on every instruction set of this machine, at any alignment."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato import _native

Array = npt.NDArray[Any]
Raw = npt.NDArray[np.uint8]

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "int16"]
REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "average": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}

# Signed zeros, infinities, NaN, denormals, ties between two float16 or two bfloat16, and the edge of float16's range.
SPECIAL = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-45, 2**-25, 3 * 2**-25, 2**-24, 2**-14 - 2**-25, 2**-14, 1e-39]
SPECIAL += [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65504.0, 65519.996, 65520.0, 3.4e38]


@pytest.fixture(params=_native.available_instruction_sets(), autouse=True, scope="module")
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    best = _native.instruction_set()
    _native.set_instruction_set(request.param)
    yield
    _native.set_instruction_set(best)


@pytest.fixture(autouse=True, scope="module")
def _quiet_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


# ---- the reference: numpy, and bfloat16 as the upper half of a float32 ----


def storage(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def accumulator(dtype: str) -> np.dtype[Any]:
    return np.dtype("float32" if dtype in ("float16", "bfloat16") else dtype)


def widened(dtype: str, items: Array) -> Array:
    if dtype == "bfloat16":
        return (items.astype(np.uint32) << 16).view(np.float32)
    return items.astype(accumulator(dtype))


def narrowed(dtype: str, values: Array) -> Array:
    if dtype != "bfloat16":
        return values.astype(storage(dtype))
    bits = values.view(np.uint32).astype(np.uint64)
    below = bits >> 16
    rest = bits & 0xFFFF
    rounded = below + ((rest > 0x8000) | ((rest == 0x8000) & (below & 1 == 1)))
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


# ---- what the kernels are given ----


def items_of(dtype: str, random: np.random.Generator, num_items: int) -> Array:
    """Any bits at all, and for every other float one of the special values."""
    items = random.integers(0, 256, num_items * storage(dtype).itemsize, np.uint8).view(storage(dtype))
    if accumulator(dtype).kind == "f":
        items[::2] = narrowed(dtype, random.choice(SPECIAL, len(items[::2])).astype(accumulator(dtype)))
    return items


def unaligned(items: Array, offset: int) -> Raw:
    """A copy of the items' bytes, `offset` bytes behind an aligned address."""
    memory = np.zeros(items.nbytes + offset, np.uint8)
    memory[offset:] = items.view(np.uint8)
    return memory[offset:]


def any_case(test: Callable[..., None]) -> Callable[..., None]:
    """Runs the test with every dtype; sizes, offsets and values are hypothesis's choice."""
    cases = given(
        random=st.integers(0, 2**32 - 1).map(np.random.default_rng),
        num_items=st.integers(0, 70) | st.integers(0, 2500),
        offset=st.integers(0, 8),
    )
    every_dtype: Callable[..., None] = pytest.mark.parametrize("dtype", DTYPES)(settings(max_examples=30)(cases(test)))
    return every_dtype


def assert_items(dtype: str, raw: Raw, expected: Array) -> None:
    """Equal, where any NaN is as good as another, and -0.0 as 0.0."""
    items = raw.copy().view(storage(dtype))
    np.testing.assert_array_equal(widened(dtype, items), widened(dtype, expected))


# ---- against numpy ----


@pytest.mark.parametrize("reduction", REDUCTIONS)
@any_case
def test_reduce(reduction: str, dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    first, second = (items_of(dtype, random, num_items) for _ in range(2))
    total = unaligned(widened(dtype, first), offset)
    _native.reduce(dtype, reduction, total, unaligned(second, 8 - offset))
    expected = REDUCTIONS[reduction](widened(dtype, first), widened(dtype, second))
    np.testing.assert_array_equal(total.copy().view(accumulator(dtype)), expected)


@any_case
def test_measure(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    items = items_of(dtype, random, num_items)
    values = np.zeros((-(-num_items // 16), 16))
    values.reshape(-1)[:num_items] = widened(dtype, items)
    squares = 0.0
    for lane in values.T:  # item by item, as one adds them up by hand; numpy's own sum has another order
        squares += sum((value * value for value in lane), np.float64(0))
    expected = squares, np.abs(values).max(initial=0.0)
    np.testing.assert_equal(_native.measure(dtype, unaligned(items, offset)), expected)


@any_case
def test_load_widens(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    items = items_of(dtype, random, num_items)
    wide = unaligned(np.zeros(num_items, accumulator(dtype)), offset)
    _native.load(dtype, wide, unaligned(items, 8 - offset))
    np.testing.assert_array_equal(wide.copy().view(accumulator(dtype)), widened(dtype, items))


@any_case
def test_store_rounds_to_nearest_even(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    values = items_of(accumulator(dtype).name, random, num_items)
    output = unaligned(np.zeros(num_items, storage(dtype)), offset)
    _native.store(dtype, output, unaligned(values, 8 - offset))
    assert_items(dtype, output, narrowed(dtype, values))


@any_case
def test_add_rounds_once(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    first, second = (items_of(dtype, random, num_items) for _ in range(2))
    total = unaligned(first, offset)
    _native.add(dtype, total, unaligned(second, 8 - offset))
    assert_items(dtype, total, narrowed(dtype, widened(dtype, first) + widened(dtype, second)))


def summed(dtype: str, output: Array | Raw, inputs: Sequence[Array | Raw]) -> None:
    """The sum of all inputs, made as a server makes it; the output may be one of them."""
    total = np.empty(output.nbytes // storage(dtype).itemsize, accumulator(dtype))
    _native.load(dtype, total, inputs[0])
    for each in inputs[1:]:
        _native.reduce(dtype, "sum", total, each)
    _native.store(dtype, output, total)


@any_case
def test_sum_of_many_rounds_once(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    inputs = [items_of(dtype, random, num_items) for _ in range(random.integers(1, 6))]
    buffers = [unaligned(items, offset) for items in inputs]
    summed(dtype, buffers[-1], buffers)
    expected = widened(dtype, inputs[0])
    for items in inputs[1:]:
        expected = expected + widened(dtype, items)
    assert_items(dtype, buffers[-1], narrowed(dtype, expected))


@any_case
def test_a_factor_of_one_over_n_divides(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    items = items_of(dtype, random, num_items)
    n = int(random.integers(1, 1000))
    data = unaligned(items, offset)
    _native.scale(dtype, data, 1 / n)
    if accumulator(dtype).kind == "f":
        expected = narrowed(dtype, widened(dtype, items) / accumulator(dtype).type(n))
    else:
        expected = np.array([abs(int(item)) // n * (1 if item > 0 else -1) for item in items], dtype)
    assert_items(dtype, data, expected)


@any_case
def test_any_other_factor_multiplies(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    items = items_of(dtype, random, num_items)
    factor = float(random.normal()) * 3
    data = unaligned(items, offset)
    _native.scale(dtype, data, factor)
    if accumulator(dtype).kind == "f":
        expected = narrowed(dtype, widened(dtype, items) * accumulator(dtype).type(factor))
    else:
        limits = np.iinfo(dtype)
        expected = np.array([min(max(int(float(item) * factor), limits.min), limits.max) for item in items], dtype)
    assert_items(dtype, data, expected)


# ---- every instruction set against the scalar one ----


@any_case
def test_bits_are_those_of_the_scalar_set(dtype: str, random: np.random.Generator, num_items: int, offset: int) -> None:
    first, second = (items_of(dtype, random, num_items) for _ in range(2))
    wide = items_of(accumulator(dtype).name, random, num_items)

    def results() -> list[bytes]:
        added, stored, averaged = (unaligned(first, offset) for _ in range(3))
        reduced, loaded = (unaligned(wide, offset) for _ in range(2))
        _native.add(dtype, added, second)
        _native.store(dtype, stored, wide)
        _native.store(dtype, averaged, wide, 1 / 3)
        _native.reduce(dtype, "max", reduced, second)
        _native.load(dtype, loaded, second)
        return [
            *(canonical(widened(dtype, raw.copy().view(storage(dtype)))) for raw in (added, stored, averaged)),
            *(canonical(raw.copy().view(accumulator(dtype))) for raw in (reduced, loaded)),
        ]

    here, under_test = results(), _native.instruction_set()
    _native.set_instruction_set("scalar")
    scalar = results()
    _native.set_instruction_set(under_test)
    assert here == scalar


def canonical(values: Array) -> bytes:
    """The bits, with one NaN for all: which of two NaNs an addition keeps is the compiler's choice."""
    return np.where(np.isnan(values), np.nan, values).astype(values.dtype).tobytes()


def test_unknown_instruction_set() -> None:
    with pytest.raises(ValueError, match=r"'mmx' is not one of this machine's: scalar"):
        _native.set_instruction_set("mmx")


# ---- exact promises ----


def test_integer_average_is_exact_beyond_what_a_double_holds() -> None:
    data = np.array([2**62 + 3, -(2**62) - 3, 7, -7], np.int64)
    _native.scale("int64", data, 1 / 2)
    assert data.tolist() == [2**61 + 1, -(2**61) - 1, 3, -3]


def test_integer_sums_wrap() -> None:
    total = np.array([2**31 - 1, -(2**31)], np.int32)
    _native.add("int32", total, np.array([1, -1], np.int32))
    assert total.tolist() == [-(2**31), 2**31 - 1]


@pytest.mark.parametrize("reduction", ["min", "max"])
@pytest.mark.parametrize("values", [(np.nan, 1.0), (1.0, np.nan)])
def test_nan_wins(reduction: str, values: tuple[float, float]) -> None:
    accumulator, items = (np.full(9, value, np.float32) for value in values)
    _native.reduce("float32", reduction, accumulator, items)
    assert np.isnan(accumulator).all()


def test_many_small_float16_are_not_lost() -> None:
    """One after the other they would be: 2048 + 1 is 2048 in float16."""
    output = np.zeros(3, np.float16)
    summed("float16", output, [np.full(3, 2048, np.float16), *[np.ones(3, np.float16)] * 64])
    assert output.tolist() == [2112.0] * 3


# ---- checksum ----


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this and the next three: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_of_known_vectors(data: bytes, checksum: int) -> None:
    assert _native.crc32c(data) == checksum


@given(
    random=st.integers(0, 2**32 - 1).map(np.random.default_rng),
    num_bytes=st.integers(0, 60_000),
    cut=st.floats(0, 1),
)
def test_crc32c_chains_and_equals_bit_by_bit(random: np.random.Generator, num_bytes: int, cut: float) -> None:
    data = random.bytes(num_bytes)
    middle = int(cut * num_bytes)
    checksum = _native.crc32c(data)
    assert _native.crc32c(data[middle:], _native.crc32c(data[:middle])) == checksum
    chunk, before = data[:100], _native.crc32c(data[100:])
    assert _native.crc32c(chunk, before) == crc32c_bit_by_bit(chunk, before)


def crc32c_bit_by_bit(data: bytes, seed: int) -> int:
    crc = ~seed & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


# ---- mistakes ----

FOUR = np.zeros(4, np.float32)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"dtype 'float8' is not one of: float32, .*, int16"):
        _native.add("float8", FOUR.copy(), FOUR)
    with pytest.raises(ValueError, match="reduction 'mean' is not one of: sum, average, min, max, product"):
        _native.reduce("float32", "mean", FOUR.copy(), FOUR)


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="input holds 12 bytes where 4 items need 16"):
        _native.add("float32", FOUR.copy(), FOUR[:3])
    with pytest.raises(ValueError, match="total holds 7 bytes, which is no multiple of 4"):
        _native.add("float32", bytearray(7), FOUR)
    with pytest.raises(ValueError, match="accumulator holds 16 bytes where 8 items need 32"):
        _native.store("float16", FOUR.copy(), FOUR)


def test_unusable_buffers() -> None:
    with pytest.raises(ValueError, match="total must be a contiguous, writable buffer"):
        _native.add("float32", bytes(16), FOUR)
    with pytest.raises(ValueError, match="input must be a contiguous buffer"):
        _native.add("float32", FOUR.copy(), np.zeros(8, np.float32)[::2])
