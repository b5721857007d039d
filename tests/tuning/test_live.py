"""Live tuning, event by event: no clock, no thread, no rank."""

from dataclasses import replace

import pytest

from legato.core import Layer, Workload
from legato.sim.cluster import Cluster
from legato.testing.tuner_contract import CLUSTER, SPACE
from legato.testing.tuner_contract import measured as measured_in_simulation
from legato.tuning.candidate import BASELINE, Candidate
from legato.tuning.live.controller import MAX_REFUSALS, Advise, Ask, Command, Live, Say, State, Switch
from legato.tuning.live.guard import Guard, GuardConfig
from legato.tuning.statistics import WINDOW_STEPS, Report, Statistics, gather
from legato.tuning.twin.twin import Twin

START = Candidate("bytescheduler", 2_000_000, 4_000_000)
BETTER = Candidate("bytescheduler", 250_000, 1_000_000)
WORKLOAD = Workload("live", (Layer("input", 0, 0.0, 0.0), Layer("only", 4_000_000, 0.02, 0.04)))
SECONDS = {START: 0.100, BETTER: 0.080, BASELINE: 0.120}


class Job:
    """Ranks that do as they are told, some steps late: what `Live` says comes true."""

    def __init__(self, seconds: dict[Candidate, float], *, lead: int = 2) -> None:
        self.live = Live(START, guard=Guard(GuardConfig(block_steps=3, min_blocks=4, max_blocks=8)))
        self.seconds = seconds
        self.said: list[str] = []
        self.asked: list[Statistics] = []
        self.ran: list[Candidate] = []
        self.advised = 0
        self.present = START
        self._coming: tuple[int, Candidate] | None = None
        self._lead = lead

    def state(self) -> State:
        return self.live.state

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Switch(candidate):
                    assert self._coming is None, "one switch at a time"
                    self._coming = (len(self.ran) + self._lead, candidate)
                case Ask(statistics):
                    self.asked.append(statistics)
                case Say(text):
                    self.said.append(text)
                case Advise():
                    self.advised += 1

    def steps(self, number: int) -> None:
        for _ in range(number):
            if self._coming is not None and len(self.ran) >= self._coming[0]:
                (_, self.present), self._coming = self._coming, None
                self.do(self.live.switched())
            self.ran.append(self.present)
            self.do(self.live.step(self.present, self.seconds[self.present]))

    def window(self) -> None:
        """Ten steps, and their statistics."""
        self.steps(10)
        self.do(self.live.window(self.measured(self.present)))

    def measured(self, candidate: Candidate) -> Statistics:
        return Statistics(candidate=candidate, iteration_s=self.seconds[candidate], workload=WORKLOAD)

    def answer(self, choice: Candidate, *, settled: bool) -> None:
        self.do(self.live.answered(choice, settled))

    def explore(self, choice: Candidate) -> None:
        """A window, the tuner's choice, a window of that, and the tuner stays with it."""
        self.window()
        self.answer(choice, settled=False)
        self.steps(3)
        self.window()
        self.answer(choice, settled=True)


def letters(ran: list[Candidate]) -> str:
    return "".join({START: "s", BETTER: "C", BASELINE: "B"}[each] for each in ran)


def test_a_better_plan_is_tried_against_the_baseline_and_stays() -> None:
    job = Job(SECONDS)
    job.explore(BETTER)
    assert job.state() is State.TRIAL
    job.steps(40)
    # Two steps pass before a switch; three steps are a block, and the guard's order is B C C B.
    assert letters(job.ran) == "s" * 12 + "C" * 13 + "BBB" + "BB" + "CCCCCC" + "CC" + "BBB" + "BB" + "C" * 20
    assert job.state() is State.STANDING
    assert job.live.standing == BETTER
    assert "it stays on" in job.said[-1]
    assert not job.advised


def test_where_the_candidate_is_slower_the_baseline_stays_with_advice() -> None:
    job = Job({**SECONDS, BASELINE: 0.070})
    job.explore(BETTER)
    job.steps(60)
    assert job.live.standing == BASELINE
    assert job.ran[-1] == BASELINE
    assert "wfbp stays" in job.said[-1]
    assert "80.0 ms" in job.said[-1]
    assert job.advised == 1


def test_where_both_are_alike_the_baseline_stays() -> None:
    job = Job({**SECONDS, BASELINE: 0.080})
    job.explore(BETTER)
    job.steps(80)
    assert job.live.standing == BASELINE
    assert "not faster beyond noise" in job.said[-1]


def test_computation_leaves_nothing_to_gain() -> None:
    job = Job({START: 0.0605})
    for _ in range(5):
        job.window()
    assert job.state() is State.LOOKING
    assert set(job.ran) == {START}
    assert not job.asked
    assert len(job.said) == 1
    assert "no plan can gain more" in job.said[0]


def test_what_stands_is_left_alone_until_steps_change() -> None:
    job = Job(dict(SECONDS))
    job.explore(BETTER)
    job.steps(40)
    for _ in range(5):
        job.window()
    assert len(job.asked) == 2
    job.seconds[BETTER] = 0.095
    job.window()
    assert len(job.asked) == 3
    # The tuner would do the same again: no trial, and what a step takes now is what counts from now on.
    job.answer(BETTER, settled=True)
    assert job.state() is State.STANDING
    job.window()
    assert len(job.asked) == 3


def test_a_new_choice_after_a_change_is_tried_again() -> None:
    job = Job(dict(SECONDS))
    job.explore(BETTER)
    job.steps(40)
    job.window()
    job.seconds = {START: 0.2, BETTER: 0.3, BASELINE: 0.4}
    job.window()
    job.answer(START, settled=False)
    assert job.live.standing == BETTER, "the last good plan is what was decided for"
    job.steps(3)
    job.window()
    job.answer(START, settled=True)
    assert job.state() is State.TRIAL
    job.steps(40)
    assert job.live.standing == START


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda reports: [replace(reports[0], steps_s=(float("nan"),) * 10), reports[1]], id="NaN"),
        pytest.param(lambda reports: reports[:1], id="a rank stops reporting"),
        pytest.param(
            lambda reports: [reports[0], replace(reports[1], backward_s=(0.0, -3600.0))], id="a clock steps back"
        ),
        pytest.param(
            lambda reports: [reports[0], replace(reports[1], steps_s=(0.1,) * 9 + (3600.0,))], id="a clock steps ahead"
        ),
    ],
)
def test_bad_input_brings_the_last_good_plan_back_and_tuning_goes_on(spoil) -> None:  # type: ignore[no-untyped-def]
    reports = [
        Report(
            rank=rank,
            steps_s=(0.1,) * 10,
            forward_s=(0.0, 0.02),
            backward_s=(0.0, 0.04),
            up_bytes_per_s=(1e8,) * 10,
            down_bytes_per_s=(1e8,) * 10,
        )
        for rank in range(2)
    ]
    bad = gather(spoil(reports), candidate=BETTER, workers=2, workload=WORKLOAD)
    assert isinstance(bad, str)
    job = Job(SECONDS)
    job.window()
    job.answer(BETTER, settled=False)
    job.steps(10)
    assert job.ran[-1] == BETTER
    for _ in range(3):
        job.do(job.live.window(bad))
        job.steps(10)
    assert job.ran[-1] == START
    assert len(job.asked) == 1, "the tuner is not told"
    assert [text for text in job.said if bad in text] == job.said, "said once"
    assert len(job.said) == 1
    # Reports that can be are used again.
    job.window()
    assert len(job.asked) == 2


def test_in_a_trial_times_that_cannot_be_do_not_count() -> None:
    job = Job(SECONDS)
    job.explore(BETTER)
    for _ in range(60):
        for impossible in (float("nan"), 0.0, -1.0):
            job.do(job.live.step(job.present, impossible))
        job.steps(1)
    assert job.live.standing == BETTER


def test_plans_that_are_never_agreed_on_end_it() -> None:
    job = Job(SECONDS)
    job.window()
    commands = job.live.answered(BETTER, settled=False)
    for _ in range(MAX_REFUSALS - 1):
        assert commands == [Switch(BETTER)]
        commands = job.live.not_switched("step 12 has begun")
    [said] = job.live.not_switched("step 12 has begun")
    assert isinstance(said, Say)
    assert said.is_warning
    assert "parts of 2MB, 2 in flight stays: plans are not agreed on (step 12 has begun)" in said.text
    assert job.state() is State.ENDED


def test_a_tuner_that_breaks_leaves_the_last_good_plan() -> None:
    job = Job(SECONDS)
    job.window()
    job.answer(BETTER, settled=False)
    job.steps(4)
    job.window()
    job.do(job.live.failed("ValueError: no"))
    job.steps(20)
    assert job.ran[-1] == START
    job.window()
    assert len(job.asked) == 2


@pytest.mark.parametrize("start", [SPACE.at(0, 2, 0), SPACE.at(0, 3, 1)], ids=str)
def test_with_the_twin_on_simulated_steps_it_ends_near_the_best(start: Candidate) -> None:
    """Ten steps a window, a switch two steps after it was asked for; the network gets slower in between."""
    networks = (CLUSTER, replace(CLUSTER, gbps=4))
    live = Live(start)
    tuner = Twin(SPACE, replace(CLUSTER, gbps=1.0, latency_s=0.0, overhead_s=0.0), start=start)
    seconds: dict[tuple[Candidate, Cluster], Statistics] = {}
    present, coming, since = start, None, 0
    commands: list[Command] = []
    for step in range(160):
        network = networks[step >= 80]
        if coming is not None and step >= coming[0]:
            (_, present), coming, since = coming, None, step
            commands += live.switched()
        statistics = seconds.setdefault((present, network), measured_in_simulation(present, network))
        commands += live.step(present, statistics.iteration_s * (1.01 if step % 2 else 1.0))
        if step - since == WINDOW_STEPS:
            commands += live.window(statistics)
            since = step
        while commands:
            match commands.pop(0):
                case Switch(candidate):
                    coming = (step + 2, candidate)
                case Ask(told):
                    tuner.tell(told)
                    commands += live.answered(tuner.ask(), tuner.settled)
        if step in (79, 159):
            best_s = min(measured_in_simulation(each, network).iteration_s for each in (*SPACE, BASELINE))
            assert live.state is State.STANDING
            assert measured_in_simulation(live.standing, network).iteration_s <= 1.05 * best_s


def test_what_is_faster_than_the_baseline_could_be_stays_without_a_trial() -> None:
    job = Job(SECONDS)
    job.window()
    job.do(job.live.answered(START, settled=True, baseline_s=0.115))
    job.steps(20)
    assert job.state() is State.STANDING
    assert set(job.ran) == {START}
    assert job.said == [
        f"{START} takes 100.0 ms a step, and wfbp could not do with less than 115.0 ms: it stays, without a trial"
    ]


def test_what_is_not_that_much_faster_is_tried() -> None:
    job = Job(SECONDS)
    job.window()
    job.do(job.live.answered(START, settled=True, baseline_s=0.110))
    job.steps(20)
    assert BASELINE in job.ran
