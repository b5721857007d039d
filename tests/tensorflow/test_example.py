"""The example: the loss goes down, whether updates wait for their own gradients or for all."""

import pytest

pytest.importorskip("tensorflow")

from tests.crew import Crew, example, losses_of


@pytest.mark.parametrize("words", [(), ("--barrier",)])
def test_digits(crew: Crew, words: tuple[str, ...]) -> None:
    printed, others = crew.run(example, "tensorflow_digits.py", "--steps", "30", "--batch", "16", *words)
    assert "2 workers: " in printed
    assert others == ""
    assert losses_of(printed)[-1] < losses_of(printed)[0] / 2
