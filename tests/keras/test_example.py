"""The example: the loss goes down from epoch to epoch."""

import pytest

pytest.importorskip("tensorflow")

from tests.crew import Crew, example, losses_of


def test_digits(crew: Crew) -> None:
    printed, others = crew.run(example, "keras_digits.py", "--epochs", "3")
    assert others == ""
    losses = losses_of(printed)
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2
