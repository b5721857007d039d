import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.errors import InputError
from legato.units import format_bytes, parse_bytes, parse_gbps, parse_seconds


@pytest.mark.parametrize(
    ("text", "value"), [("65536", 65536), ("64KB", 64_000), ("64 kib", 65536), ("4MB", 4_000_000), ("1.5GiB", 3 << 29)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(("text", "value"), [("10", 10), ("10Gbps", 10), ("500Mbps", 0.5), ("0.1 Gbit/s", 0.1)])
def test_rates(text: str, value: float) -> None:
    assert parse_gbps(text) == value


@pytest.mark.parametrize(("text", "value"), [("20us", 20e-6), ("1.5ms", 1.5e-3), ("2 s", 2), ("0", 0), ("5µs", 5e-6)])
def test_durations(text: str, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "MB", "4XB", "-1", "4 4MB"])
def test_what_is_not_a_size_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(InputError, match="is not a size such as"):
        parse_bytes(text)


def test_a_duration_needs_its_unit() -> None:
    with pytest.raises(InputError, match="is not a duration such as 20us"):
        parse_seconds("20")


@given(st.integers(0, 1 << 40))
def test_formatted_sizes_read_back(num_bytes: int) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == num_bytes
