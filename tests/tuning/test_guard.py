"""The guard, step by step."""

import math
import random

import pytest

from legato.errors import InputError
from legato.tuning.candidate import BASELINE, Candidate
from legato.tuning.live.guard import Decision, Guard, GuardConfig, Trigger, Verdict

CANDIDATE = Candidate("bytescheduler", 1_000_000, 4_000_000)


def run(guard: Guard, baseline_s: float, candidate_s: float, noise: float = 0.0, seed: int = 0) -> Decision:
    """A trial on steps that take these times, with noise."""
    rng = random.Random(seed)
    guard.propose(CANDIDATE)
    for _ in range(1000):
        seconds = baseline_s if guard.ask() == BASELINE else candidate_s
        decision = guard.tell(seconds * rng.lognormvariate(0.0, noise))
        if decision is not None:
            return decision
    raise AssertionError("no decision")


def test_the_order_of_a_trial() -> None:
    guard = Guard(GuardConfig(block_steps=2, min_blocks=6, max_blocks=6))
    guard.propose(CANDIDATE)
    order = ""
    for place in range(12):
        order += "B" if guard.ask() == BASELINE else "C"
        # The first step of a block is very slow, and does not count.
        decision = guard.tell((1.0 if order[-1] == "B" else 0.5) * (1 + place % 2 * 0.01) if place % 2 else 9.0)
    assert order == "BBCCCCBBBBCC"
    assert decision is not None
    assert decision.verdict is Verdict.KEPT
    assert decision.gain == pytest.approx(1.0)
    assert guard.ask() == CANDIDATE


def test_a_faster_candidate_stays() -> None:
    guard = Guard()
    decision = run(guard, 0.100, 0.080, noise=0.02)
    assert decision.verdict is Verdict.KEPT
    assert decision.gain == pytest.approx(0.25, abs=0.05)
    assert decision.steps == 12
    assert guard.ask() == CANDIDATE
    assert not guard.in_trial
    assert "it stays on" in str(decision)


def test_a_slower_candidate_goes() -> None:
    guard = Guard()
    decision = run(guard, 0.100, 0.110, noise=0.02)
    assert decision.verdict is Verdict.REFUSED
    assert guard.ask() == BASELINE
    assert "slower, so wfbp stays" in str(decision)


def test_a_gain_within_noise_does_not_count() -> None:
    guard = Guard()
    decision = run(guard, 0.100, 0.100, noise=0.05, seed=3)
    assert decision.verdict is Verdict.REFUSED
    assert guard.ask() == BASELINE


def test_a_candidate_that_cannot_gain_enough_is_refused_early() -> None:
    config = GuardConfig(worthwhile=0.03)
    seed = 2
    early, late = (run(Guard(each), 0.1, 0.1, noise=0.01, seed=seed) for each in (config, GuardConfig()))
    assert early.verdict is late.verdict is Verdict.REFUSED
    assert (early.steps, late.steps) == (12, 48)
    assert run(Guard(config), 0.1, 0.1, noise=0.1, seed=seed).steps > 12, "with such noise it may be 3 % faster"
    assert run(Guard(config), 0.1, 0.098, noise=0.001).verdict is Verdict.KEPT, "what is plainly faster stays"


def test_it_hardly_ever_keeps_what_is_slower() -> None:
    kept = sum(run(Guard(), 0.100, 0.103, noise=0.05, seed=seed).verdict is Verdict.KEPT for seed in range(200))
    assert kept <= 6


def test_a_drift_does_not_decide() -> None:
    guard = Guard(GuardConfig(min_blocks=8, max_blocks=8))
    guard.propose(CANDIDATE)
    decision, seconds = None, 0.1
    while decision is None:
        seconds *= 1.005
        decision = guard.tell(seconds)
    assert decision.verdict is Verdict.REFUSED


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_what_cannot_be_a_time_is_not_counted(bad: float) -> None:
    guard = Guard()
    guard.propose(CANDIDATE)
    for _ in range(500):
        assert guard.tell(bad) is None
        assert guard.ask() == BASELINE
    assert run(guard, 0.1, 0.05, noise=0.01).verdict is Verdict.KEPT


def test_a_stalled_step_does_not_decide() -> None:
    guard = Guard()
    guard.propose(CANDIDATE)
    decision, steps = None, 0
    rng = random.Random(1)
    while decision is None:
        steps += 1
        seconds = (0.1 if guard.ask() == BASELINE else 0.08) * rng.lognormvariate(0.0, 0.01)
        decision = guard.tell(5.0 if steps == 5 else seconds)
    assert decision.verdict is Verdict.KEPT
    assert decision.gain == pytest.approx(0.25, abs=0.03)


def test_a_new_proposal_replaces_a_trial_and_the_baseline_needs_none() -> None:
    guard = Guard()
    run(guard, 0.1, 0.05, noise=0.01)
    guard.propose(Candidate("rsag"))
    assert guard.in_trial
    guard.propose(BASELINE)
    assert not guard.in_trial
    assert guard.ask() == BASELINE


@pytest.mark.parametrize("wrong", [{"block_steps": 1}, {"min_blocks": 2}, {"min_blocks": 20}, {"sigmas": 0.0}])
def test_its_configuration_is_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="guard: "):
        GuardConfig(**wrong)  # type: ignore[arg-type]


def test_the_trigger() -> None:
    trigger = Trigger()
    assert not trigger.worth_switching(1.05, 1.0)
    assert trigger.worth_switching(1.06, 1.0)
    assert not trigger.has_drifted(0.91, 1.0)
    assert trigger.has_drifted(0.89, 1.0)
    assert trigger.has_drifted(1.2, 1.0)
    with pytest.raises(InputError, match="must be 0 or more"):
        Trigger(gain=math.nan)
