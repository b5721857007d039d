"""Tuning while training runs: what two real ranks do, and where a schedule is not tuned."""

import logging
import os
from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import legato.torch as lg
from legato.errors import InputError
from legato.testing.log import said
from legato.torch.scheduling.hooks import Schedule
from legato.torch.tuning.clock import HostClock
from legato.torch.tuning.live import LiveTuning
from legato.tuning.statistics import Report
from tests.torch.crew import Crew

WIDTH = 256
MANY_STEPS = 1_000
"""Enough for plans to change even where some windows are refused, or plans come too late for their step."""
Governed = tuple[int, str | None, int | None, int | None]
"""First step, policy, partition and credit of a plan."""


class LateClock(HostClock):
    """Times that are known a step late, as an accelerator's are."""

    lag_steps = 1


def train_by(clock: type[HostClock], *arguments: Any) -> tuple[torch.Tensor, list[Governed]]:
    """With a clock, and a tuner that finds something to gain, however little ranks on a busy machine wait for sums."""
    with (
        patch("legato.torch.composition.clock_of", lambda device: clock()),  # noqa: ARG005
        patch("legato.tuning.live.controller.WORTHWHILE", -inf),
    ):
        return train(*arguments)


def train(
    tuner: str, max_steps: int, num_plans: int | None = None, trouble: str = "", device: str = "cpu"
) -> tuple[torch.Tensor, list[Governed]]:
    """The weights after some steps, or as soon as there were so many plans; and which plan governed each step."""
    job = lg.init()
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    lg.schedule(model, optimizer, tuner=tuner)
    member = job.group.session.member
    if trouble and lg.rank() == 1:
        send = member.report

        def report(from_step: int, text: str) -> None:
            measured = Report.from_json(text)
            if trouble == "nan":
                measured = replace(measured, steps_s=(nan,) * len(measured.steps_s))
            if trouble == "clock":
                measured = replace(measured, steps_s=(*measured.steps_s[:-1], 3600.0))
            if trouble != "silent":
                send(from_step, measured.to_json())

        member.report = report  # type: ignore[method-assign]
    plans: list[Governed] = []
    for step in range(max_steps):
        generator = torch.Generator().manual_seed(100 * step + lg.rank())
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH, generator=generator).to(device)).square().mean().backward()
        optimizer.step()
        if step > 1:  # the sums of the step before are here, so what governed it is settled; the first is by itself
            period = job.group.session.player.period(step - 1)
            policy = None if period.plan is None else period.plan.policy
            plans.append((period.from_step, policy, period.partition_bytes, period.credit_bytes))
        if len(set(plans)) == num_plans:  # every rank sees them at the same steps, and stops at the same one
            break
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).cpu().clone(), plans


@pytest.mark.parametrize("clock", [HostClock, LateClock])
def test_a_plan_changes_at_the_same_step_on_all_ranks_and_no_result_does(crew: Crew, clock: type[HostClock]) -> None:
    (weights, plans), (weights_too, plans_too) = crew.run(train_by, clock, "grid", MANY_STEPS, 3)
    (untuned, plan), _ = crew.run(train, "off", len(plans) + 2)
    assert plans == plans_too
    assert len(set(plans)) == 3, "a grid changes the plan after every window"
    assert len(set(plan)) == 1
    assert torch.equal(weights, weights_too)
    assert torch.equal(weights, untuned)


class PricedClock(LateClock):
    """Rests between windows, as an accelerator's does, and counts its marks."""

    rest_steps = 20

    def __init__(self) -> None:
        self.marks = 0

    def stamp(self) -> int:
        self.marks += 1
        return super().stamp()


def marks_and_windows(num_steps: int) -> tuple[list[int], list[int]]:
    """How many marks each step makes, and the first step of each window that is reported."""
    windows: list[int] = []
    report = LiveTuning._report

    def noted(tuning: LiveTuning, *arguments: Any) -> None:
        windows.append(tuning._from_step)
        report(tuning, *arguments)

    with (
        patch("legato.torch.composition.clock_of", lambda device: PricedClock()),  # noqa: ARG005
        patch.object(LiveTuning, "_report", noted),
        patch("legato.torch.tuning.live._Lead.step", lambda *_: None),  # a plan that does not change
    ):
        lg.init()
        model = nn.Linear(WIDTH, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lg.schedule(model, optimizer, tuner="twin")
        tuning = Schedule.of(model)._parameters.tuning
        assert isinstance(tuning, LiveTuning)
        clock = tuning._clock
        assert isinstance(clock, PricedClock)
        counts = []
        for _ in range(num_steps):
            before = clock.marks
            optimizer.zero_grad()
            model(torch.ones(1, WIDTH)).sum().backward()
            optimizer.step()
            counts.append(clock.marks - before)
    return counts, windows


def test_a_clock_with_a_price_rests_between_windows(crew: Crew) -> None:
    for marks, windows in crew.run(marks_and_windows, 130):
        gaps = [after - before for before, after in pairwise(windows)]
        assert gaps[:4] == [10] * 4, "a new plan is measured without a pause"
        assert set(gaps[4:]) == {30}, "then only now and then"
        for first in windows:
            assert all(count > 1 for count in marks[first : first + 10]), "windows are whole"
        last = windows[-1]
        assert set(marks[last - 18 : last]) == {1}, "between two of them only steps are timed"


def train_in_trouble(trouble: str) -> tuple[list[Governed], list[str]]:
    """Which plan governed each step, and what tuning had to say."""
    with said("legato.torch.tuning.live") as lines:
        return train("grid", 40, trouble=trouble)[1], lines


@pytest.mark.parametrize("trouble", ["nan", "silent", "clock"])
def test_what_a_rank_reports_wrongly_or_not_at_all_changes_nothing(crew: Crew, trouble: str) -> None:
    (plans, lines), (plans_too, _) = crew.run(train_in_trouble, trouble)
    assert set(plans) == set(plans_too) == {plans[0]}
    assert any("statistics not used" in line for line in lines), "rank 0 must have looked at them"


def marks_of_a_test_set() -> tuple[int, int]:
    """How many marks are kept, and how many may be."""
    lg.init()
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
    for _ in range(1_000):
        model(torch.ones(1, WIDTH))
    tuning = Schedule.of(model)._parameters.tuning
    assert isinstance(tuning, LiveTuning)
    return len(tuning._marks), tuning._most_marks


def test_a_pass_through_a_test_set_fills_no_memory(crew: Crew) -> None:
    for kept, most in crew.run(marks_of_a_test_set):
        assert 0 < kept == most < 1_000


def is_tuned(**options: object) -> bool:
    lg.init()
    model = nn.Linear(WIDTH, WIDTH)
    lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)  # type: ignore[arg-type]
    return isinstance(Schedule.of(model)._parameters.tuning, LiveTuning)


def kinds_of_schedules() -> list[bool]:
    return [
        is_tuned(),
        is_tuned(),  # a job has one schedule whose steps plans count
    ]


def after_another_one() -> bool:
    """A schedule that has taken a step and is gone has been the first one."""
    lg.init()
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer)
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    lg.unschedule(model)
    return is_tuned()


def one_kind(options: dict[str, object]) -> bool:
    return is_tuned(**options)


@pytest.mark.parametrize(
    ("options", "tuned"),
    [
        ({}, True),
        ({"policy": "bytescheduler"}, False),
        ({"policy": "bytescheduler", "tuner": "twin"}, True),
        ({"tuner": "off"}, False),
        ({"compression": "fp16"}, True),
        ({"compression": "onebit", "min_compress_bytes": 0}, False),
        ({"policy": "fifo"}, False),
        ({"transport": "c10d"}, False),
    ],
)
def test_which_schedules_are_tuned(crew: Crew, options: dict[str, object], tuned: bool) -> None:
    assert crew.run(one_kind, options) == [tuned] * 2


def told_by_the_environment(name: str, value: str) -> bool:
    os.environ[name] = value
    try:
        lg.init()
    finally:
        del os.environ[name]
    return is_tuned(policy="auto" if value in ("0", "off") else "bytescheduler")


@pytest.mark.parametrize(
    ("name", "value", "tuned"),
    [
        ("LEGATO_TUNER", "off", False),
        ("LEGATO_TUNER", "grid", True),
        ("HOROVOD_AUTOTUNE", "0", False),
        ("BYTESCHEDULER_CREDIT_TUNING", "1", True),
    ],
)
def test_the_environment_says_what_schedule_is_not_told(crew: Crew, name: str, value: str, tuned: bool) -> None:
    assert crew.run(told_by_the_environment, name, value) == [tuned] * 2


def test_a_job_has_one_schedule_that_is_tuned(crew: Crew) -> None:
    assert crew.run(kinds_of_schedules) == [[True, False]] * 2
    assert crew.run(after_another_one) == [False] * 2


def over_c10d() -> list[str]:
    lg.init()
    model = nn.Linear(WIDTH, WIDTH)
    with said("legato", logging.WARNING) as lines:
        lg.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), transport="c10d", tuner="bayes")
    return lines


def test_whoever_asks_for_a_tuner_over_c10d_is_told(crew: Crew) -> None:
    assert crew.run(over_c10d) == [["tuner 'bayes' is off: over c10d the plan is static"]] * 2


def test_an_unknown_tuner_is_refused(crew: Crew) -> None:
    with pytest.raises(InputError, match="tuner 'guess' is unknown; accepted: twin, autobyte, bayes, grid, off"):
        crew.run(one_kind, {"tuner": "guess"})
