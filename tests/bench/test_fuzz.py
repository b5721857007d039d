"""The fuzzers: every parser stands some hundred inputs, and a finding says how to see it again."""

import random

import pytest

from bench.fuzz import __main__ as fuzz
from bench.fuzz.targets import Target, refuses, targets

NUM_INPUTS = 300
SEED = 20


@pytest.mark.parametrize("name", sorted(targets()))
def test_every_parser_takes_or_refuses_what_chance_has_made(name: str) -> None:
    target = targets()[name]
    refused = [refuses(target, fuzz.data_of(target, SEED, number)) for number in range(NUM_INPUTS)]
    # An engine does not refuse what is wrong with a frame: it fails.
    assert any(refused) or name == "frames", "nothing is wrong with any of them"


def test_a_finding_has_its_seed_its_number_and_its_bytes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(data: bytes) -> None:
        if data[0] == 7:
            raise KeyError("a defect")

    planted = Target(lambda chance: chance.randbytes(4), run)
    monkeypatch.setattr(fuzz, "targets", lambda: {"planted": planted})
    note = ["--target", "planted", "--seed", "3", "--seconds", "60"]
    number = next(each for each in range(10_000) if random.Random(f"3/{each}").randbytes(4)[0] == 7)
    assert fuzz.main([*note, "--only", str(number)]) == 1
    said = capfd.readouterr().out
    assert f"FINDING in planted: seed 3, input {number}, 4 bytes" in said
    assert repr(fuzz.data_of(planted, 3, number)) in said
    assert "KeyError: 'a defect'" in said
    assert fuzz.main([*note, "--only", str(number + 1)]) == 0
