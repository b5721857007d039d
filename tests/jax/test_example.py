"""The example: the loss goes down, whether averages are awaited in the step or in the next one."""

import pytest

from tests.crew import Crew, example, losses_of

SMALL = ("jax/digits.py", "--steps", "30", "--batch", "16")


def test_digits(crew: Crew) -> None:
    in_next, _ = crew.run(example, *SMALL)
    in_step, _ = crew.run(example, *SMALL, "--in-step")
    assert "legato, 2 workers: " in in_next
    assert losses_of(in_next)[-1] < losses_of(in_next)[0] / 2
    assert losses_of(in_next) == pytest.approx(losses_of(in_step), abs=1e-3)
