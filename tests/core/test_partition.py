from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.part import split
from legato.errors import InputError


def test_cuts_at_the_partition_and_keeps_the_rest() -> None:
    assert split(10, 4) == ((0, 4), (4, 4), (8, 2))


def test_no_partition_is_one_part() -> None:
    assert split(10, None) == ((0, 10),)
    assert split(0, 4) == ((0, 0),)


def test_a_partition_smaller_than_an_element_gives_one_element_per_part() -> None:
    assert split(12, 3, item_bytes=4) == ((0, 4), (4, 4), (8, 4))


def test_a_partition_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="partition_bytes=0 must be at least 1"):
        split(10, 0)


@given(items=st.integers(0, 500), item_bytes=st.sampled_from([1, 2, 4, 8]), partition=st.integers(1, 1000))
def test_parts_tile_the_bytes_at_element_boundaries(items: int, item_bytes: int, partition: int) -> None:
    parts = split(items * item_bytes, partition, item_bytes)
    assert parts[0][0] == 0
    assert sum(length for _, length in parts) == items * item_bytes
    for (offset, length), (following, _) in pairwise(parts):
        assert offset + length == following
    assert all(length % item_bytes == 0 and length <= max(partition, item_bytes) for _, length in parts)
