"""T* of real updates: a layer is updated while the rest of it arrives."""

import pytest

from bench.updates import Outcome, bound_s
from legato.core import Layer


def test_only_the_last_slice_is_left_when_the_last_byte_is_here() -> None:
    """Backward 2 s, 6 s on the link, forward 1 s; the update, 4 s, fits into the time on the link."""
    layers = [Layer("large", 6_000_000, forward_s=1.0 + 4.0, backward_s=2.0)]
    outcome = Outcome(layers=[layers], updates_s=[4.0])
    assert bound_s([outcome], 1e-6) == pytest.approx(2 + 6 + 1, abs=0.1)


def test_updates_that_take_longer_than_the_link_are_computation() -> None:
    layers = [Layer("first", 1_000_000, 1.0 + 4.0, 2.0), Layer("second", 1_000_000, 1.0 + 4.0, 2.0)]
    outcome = Outcome(layers=[layers], updates_s=[8.0])
    assert bound_s([outcome], 1e-6) == pytest.approx(5 + 2 + 5 + 2, abs=0.1)
