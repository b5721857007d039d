"""T* against hand-made cases and the limits that follow from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core import Layer, Workload, bound

times = st.floats(0, 10, allow_subnormal=False)
layers = st.lists(st.tuples(times, times, times), min_size=1, max_size=8)


def test_hidden_communication_leaves_computation() -> None:
    assert bound([1, 1], [2, 2], [0.0, 1.0]) == 6


def test_a_large_first_layer_is_an_unavoidable_tail() -> None:
    """Its gradient appears last and is needed first: nothing can overlap it."""
    assert bound([1, 1], [2, 2], [5.0, 0.0]) == 6 + 5


def test_a_large_last_layer_overlaps_with_everything_but_itself() -> None:
    assert bound([1, 1], [2, 2], [0.0, 3.0]) == 1 + 2 + 3


@given(layers)
def test_between_the_larger_of_both_and_their_sum(rows: list[tuple[float, float, float]]) -> None:
    forward, backward, communication = zip(*rows, strict=True)
    best = bound(forward, backward, communication)
    compute, link = sum(forward) + sum(backward), sum(communication)
    assert max(compute, link) <= best + 1e-9
    assert best <= compute + link + 1e-9


def test_the_slowest_link_decides() -> None:
    layers = (Layer("a", 4, 1, 2), Layer("b", 8, 1, 2))
    assert Workload("two", layers).bound_s(0.5) == bound([1, 1], [2, 2], [2, 4]) == 9
    assert Workload("two", layers).bound_s(0.25, 0.5, 0.125) == 9


def test_layers_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        bound([1, 1], [1], [1, 1])
