"""The benchmark on accelerators: what it makes of the instants that ranks report."""

import pytest

from bench.gpu import between_ends


def test_a_step_is_over_when_it_is_over_everywhere() -> None:
    """Ranks that fall behind in turn: their own longest times are 1.2 s each, and three steps took 3.2 s."""
    ends_s = [[0.0, 1.0, 2.2, 3.0], [0.0, 1.2, 2.0, 3.2]]
    assert between_ends(ends_s) == pytest.approx([1.2, 1.0, 1.0])
