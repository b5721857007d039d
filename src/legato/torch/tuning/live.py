"""Tuning while training runs: every rank measures its steps, rank 0 decides, all follow from an agreed step on.

    every rank   marks of hooks ──► meter ── every 10 steps ──► report ──┐ through the conductor, nobody waits
    rank 0                                                               ▼
                 step times ──► guard ◄── live ◄── tuner, in a thread ◄─ gather
    every rank   next step's plan, and where windows begin ◄── plan agreed for a step that nobody has begun

Nothing here waits for another rank: what is under way is looked at between two steps. Where marks have a price, all
ranks make none between two windows once a plan has run for some:

    plan  ├ window ┼ window ┼ … ┼ window ┤        rest        ├ window ┤        rest        ├ window ┤
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from math import nan
from typing import Protocol, TypeVar

from legato.core import Layer, Workload
from legato.core.shards import Deployment
from legato.errors import InputError, JobError, LegatoError
from legato.live.monitor import Monitor
from legato.sim.cluster import Cluster, Ownership
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.tuning.clock import Clock, HostClock, Stamp
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import ThreadHandle
from legato.transports.native.player import PlanPeriod
from legato.tuning.candidate import NATIVE, Candidate
from legato.tuning.live.controller import Advise, Ask, Command, Live, Say, Switch
from legato.tuning.live.meter import Meter
from legato.tuning.statistics import WINDOW_STEPS, Report, Statistics, gather
from legato.tuning.tuner import Tuner
from legato.tuning.tuners import tuner_named
from legato.tuning.twin.transports import PARTS_IN_FLIGHT, SPACES
from legato.tuning.twin.twin import Twin, advice

_log = logging.getLogger(__name__)

T = TypeVar("T")

TRAFFIC_SHARE = 0.001
"""Of the bytes that training sends, at most this much may be reports; what is smaller is not tuned."""
SPACE = replace(SPACES[NATIVE], transports=(None,))
"""What the native engine can follow, and nothing else: the transport is not to be chosen here."""
MARKS_PER_LAYER = 64
"""More in a step, and it is none: somebody has gone through a test set. A layer makes four, for each pass of a step."""
WINDOWS_BEFORE_REST = 5
"""Windows that follow one another under a new plan; then a clock that has a price rests between two."""
LEAD_STEPS = 1
"""Steps between those that have begun here and the first of a new plan: the others are at most one ahead."""


class Tuning(Protocol):
    """What a schedule tells of its steps, so that somebody may find better ones."""

    def begin(self, order: Sequence[int]) -> None:
        """The order in which parameters are first used is known. Called between two steps."""

    def enter(self, index: int) -> None:
        """The forward pass is about to use a parameter."""

    def gradient(self, index: int) -> None:
        """The backward pass has made a parameter's gradient."""

    def waiting(self) -> None:
        """For a sum that is not there, from now on."""

    def waited(self) -> None:
        """Until now."""

    def step(self) -> None:
        """The user has called step(): gradients of one more step are under way."""

    def close(self) -> None:
        """There are no more steps."""


class LiveTuning:
    """One rank's part in it. Made for the one schedule whose steps the plans of the job count."""

    def __init__(
        self,
        group: NativeGroup,
        synchronizer: NativeSynchronizer,
        names: Sequence[str],
        tuner: str | None,
        clock: Clock | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        """`names` are those of the gradients, in the order of the synchronizer's indices; the clock is of what computes
        them, a processor unless it is given. Without a tuner it only measures, for the monitor."""
        self._group = group
        self._synchronizer = synchronizer
        self._names = names
        self._clock = clock or HostClock()
        self._layer_of: list[int] = []
        self._marks: list[_Mark] = []
        self._most_marks = 0
        self._untimed: deque[_Step] = deque()
        self._meter: Meter | None = None
        self._lead = _Lead(group, synchronizer, tuner, monitor) if group.rank == 0 else None
        self._number = -1
        self._from_step = 0
        """Of the window that is measured, or of the next one."""
        self._num_windows = 0
        """Reported since the plan has changed."""
        self._seconds = nan

    def begin(self, order: Sequence[int]) -> None:
        """Measure from now on."""
        sizes = self._synchronizer.num_bytes
        ordered = [index for index in order if sizes[index]]
        report_bytes = Meter.report_bytes(len(ordered) + 1)
        if report_bytes > TRAFFIC_SHARE * WINDOW_STEPS * sum(sizes):
            _log.info("gradients of %d bytes are too few to be worth tuning", sum(sizes))
            return
        # A parameter that does not travel counts to what comes before the first one that does.
        self._layer_of = [0] * len(self._names)
        for layer, index in enumerate(ordered, start=1):
            self._layer_of[index] = layer
        # Large tensors are waited for in slices of some MB.
        self._most_marks = MARKS_PER_LAYER * (len(ordered) + 1) + (sum(sizes) >> 20)
        self._meter = Meter(
            rank=self._group.rank,
            num_layers=len(ordered) + 1,
            num_bytes=sum(sizes),
            now_ns=self._clock.begin(),
        )
        self._number = self._synchronizer.num_steps - 1
        self._from_step = self._number + 1
        if self._lead is not None:
            self._lead.begin([self._names[index] for index in ordered], [sizes[index] for index in ordered])

    def close(self) -> None:
        """No plan is under way any more, and none will be."""
        self._meter = None
        if self._lead is not None:
            self._lead.close()

    # ---- marks, several hundred a step ----

    def enter(self, index: int) -> None:
        self._mark(_Kind.ENTER, index)

    def gradient(self, index: int) -> None:
        self._mark(_Kind.GRADIENT, index)

    def waiting(self) -> None:
        self._mark(_Kind.WAITING)

    def waited(self) -> None:
        self._mark(_Kind.WAITED)

    def _mark(self, kind: "_Kind", index: int = 0) -> None:
        rests = self._number + 1 < self._from_step
        if self._meter is not None and not rests and len(self._marks) < self._most_marks:
            self._marks.append((kind, self._layer_of[index], self._clock.stamp()))

    # ---- between two steps ----

    def step(self) -> None:
        meter = self._meter
        if meter is None:
            return
        number, last = self._synchronizer.num_steps - 1, self._number
        self._number = number
        # Without one backward pass for one step() nobody knows what a step is: such a time counts for nothing.
        is_regular = number == last + 1 and len(self._marks) < self._most_marks
        self._marks.append((_Kind.STEP, 0, self._clock.stamp()))
        self._untimed.append(_Step(number, is_regular, self._traffic(), self._marks))
        self._marks = []
        if len(self._untimed) > self._clock.lag_steps:
            self._take(meter, self._untimed.popleft())

    def _take(self, meter: Meter, step: "_Step") -> None:
        """A step whose times are known."""
        seconds = self._replay(meter, step)
        # The sums of the step before are here, so what governed it is known here and everywhere: unlike this step's,
        # which may be held back by a plan that is being agreed on.
        period = self._group.session.player.period(step.number - 1)
        is_new = period.from_step == step.number - 1
        if not step.is_regular or is_new:
            self._num_windows = 0 if is_new else self._num_windows
            self._begin_window(meter, step.number + 1)
        elif step.number < self._from_step:
            meter.restart()
        elif meter.num_steps == WINDOW_STEPS:
            self._report(meter.report(), period)
            self._num_windows += 1
            rest_steps = self._clock.rest_steps if self._num_windows >= WINDOWS_BEFORE_REST else 0
            self._begin_window(meter, step.number + 1 + rest_steps)
        if self._lead is not None:
            self._lead.step(self._seconds, period)
        self._seconds = seconds if step.is_regular else nan

    def _replay(self, meter: Meter, step: "_Step") -> float:
        """Tell the meter; the step's seconds."""
        times_ns = self._clock.times_ns([stamp for _, _, stamp in step.marks])
        begin_ns = 0
        for (kind, layer, _), now_ns in zip(step.marks, times_ns, strict=True):
            match kind:
                case _Kind.ENTER:
                    meter.enter(layer, now_ns)
                case _Kind.GRADIENT:
                    meter.gradient(layer, now_ns)
                case _Kind.WAITING:
                    begin_ns = now_ns
                case _Kind.WAITED:
                    meter.waited(begin_ns, now_ns)
        return meter.step(times_ns[-1], step.traffic)

    def _begin_window(self, meter: Meter, from_step: int) -> None:
        meter.restart()
        self._from_step = from_step

    def _report(self, report: Report, period: PlanPeriod) -> None:
        if self._lead is not None:
            self._lead.measured(self._from_step, report, period)
        else:
            self._group.session.member.report(self._from_step, report.to_json())

    def _traffic(self) -> tuple[int, int]:
        counters = self._group.session.engine.statistics()
        shared = counters["bytes_shared"] // 2
        return counters["bytes_sent"] + shared, counters["bytes_received"] + shared


class _Kind(Enum):
    ENTER = auto()
    GRADIENT = auto()
    WAITING = auto()
    WAITED = auto()
    STEP = auto()


_Mark = tuple[_Kind, int, Stamp]
"""What happened, to which layer, and when."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What happened in a step, until its times are known."""

    number: int
    is_regular: bool
    traffic: tuple[int, int]
    marks: list[_Mark]


class _Lead:
    """What only rank 0 does: brings reports together, asks the tuner, and has plans agreed on."""

    def __init__(
        self, group: NativeGroup, synchronizer: NativeSynchronizer, tuner: str | None, monitor: Monitor | None
    ) -> None:
        self._group = group
        self._facts = None if monitor is None else monitor.tuning
        inbox = None if monitor is None else monitor.inbox
        self._take_reports = group.session.member.take_reports if inbox is None else inbox.take_others
        self._synchronizer = synchronizer
        period = group.session.player.period(0)
        partition_bytes = period.partition_bytes or max([1, *synchronizer.num_bytes])
        credit_bytes = period.credit_bytes or PARTS_IN_FLIGHT * partition_bytes
        start = Candidate("bytescheduler", partition_bytes, credit_bytes)
        self._shape = shape_of(group.session.player.deployment)
        self._tuner = None if tuner is None else tuner_named(tuner, SPACE, self._shape, start)
        self._live = Live(start)
        self._lead_steps = LEAD_STEPS
        self._asked: ThreadHandle[tuple[Candidate, bool, float | None]] | None = None
        self._proposed: ThreadHandle[None] | None = None
        self._plans = {0: start}
        """What has been proposed, by its first step."""
        self._reports: dict[int, list[Report]] = {}
        self._window: tuple[int, Candidate | None] = (-1, None)
        """The latest: its first step, and what it ran; None is a plan that somebody else has set."""

    def begin(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        """What travels, in the order of first use."""
        layers = [Layer(name, num_bytes, 0.0, 0.0) for name, num_bytes in zip(names, sizes, strict=True)]
        self._workload = Workload("training", (Layer("input", 0, 0.0, 0.0), *layers))
        # The first plan has been written anew, when the order of first use was known.
        self._plans[self._group.session.player.period(self._synchronizer.num_steps).from_step] = self._live.standing

    def measured(self, from_step: int, report: Report, period: PlanPeriod) -> None:
        """Rank 0's own report of a window; those of the one before that are missing will not come any more."""
        before, _ = self._window
        if before in self._reports:
            self._end_window()
        self._window = (from_step, self._plans.get(period.from_step))
        self._reports = {window: reports for window, reports in self._reports.items() if window >= from_step}
        self._reports.setdefault(from_step, []).append(report)

    def step(self, seconds: float, period: PlanPeriod) -> None:
        """A step is over: the time of the one before it, and what governed that."""
        self._hear()
        self._look()
        if (ran := self._plans.get(period.from_step)) is not None:
            if self._facts is not None:
                self._facts.ran(ran, seconds)
            if self._tuner is not None:
                self._do(self._live.step(ran, seconds))
        if self._proposed is None:
            self._plans = {from_step: plan for from_step, plan in self._plans.items() if from_step >= period.from_step}

    def close(self) -> None:
        """The tuner's thread may go on for a moment; a plan that is under way is agreed on first."""
        if self._proposed is not None:
            try:
                self._proposed.wait()
            except LegatoError as error:
                _log.info("the last plan was not taken: %s", error)

    # ---- reports ----

    def _hear(self) -> None:
        for told in self._take_reports():
            try:
                report = Report.from_json(told.text)
            except InputError as error:
                _log.info("rank %d: %s", told.rank, error)
                continue
            if told.from_step >= self._window[0]:
                self._reports.setdefault(told.from_step, []).append(replace(report, rank=told.rank))
        if len(self._reports.get(self._window[0], ())) == self._group.size:
            self._end_window()

    def _end_window(self) -> None:
        measured = self._gathered()
        if self._facts is not None and isinstance(measured, Statistics):
            self._facts.measured(measured, self._shape)
        if self._tuner is not None:
            self._do(self._live.window(measured))

    def _gathered(self) -> Statistics | str:
        """The latest window, once."""
        window, candidate = self._window
        reports = self._reports.pop(window)
        if candidate is None:
            return "somebody else has set the plan"
        return gather(reports, candidate=candidate, workers=self._group.size, workload=self._workload)

    # ---- what is under way ----

    def _look(self) -> None:
        """At what has ended since the last step."""
        if self._asked is not None and self._asked.poll():
            asked, self._asked = self._asked, None
            try:
                self._do(self._live.answered(*asked.wait()))
            except Exception as error:  # noqa: BLE001 (whatever a tuner does, training goes on)
                self._do(self._live.failed(f"{type(error).__name__}: {error}"))
        if self._proposed is not None and self._proposed.poll():
            proposed, self._proposed = self._proposed, None
            try:
                proposed.wait()
                self._do(self._live.switched())
            except JobError:
                return  # the job is over, and whoever waits for a sum hears why
            except LegatoError as error:
                self._lead_steps *= 2
                self._do(self._live.not_switched(str(error)))

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Say(text, is_warning):
                    _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
                    if self._facts is not None:
                        self._facts.said(text, is_warning=is_warning)
                case Ask(statistics):
                    assert self._tuner is not None
                    self._asked = self._background("tuner", partial(self._ask, self._tuner, statistics))
                case Switch(candidate):
                    self._proposed = self._background("plan", partial(self._propose, candidate))
                case Advise():
                    if isinstance(self._tuner, Twin):
                        self._background("advice", partial(self._advise, self._tuner))

    def _background(self, name: str, work: Callable[[], T]) -> ThreadHandle[T]:
        return ThreadHandle(name, work, self._group.session.config.member.timeout_s)

    # ---- in a thread ----

    def _ask(self, tuner: Tuner, statistics: Statistics) -> tuple[Candidate, bool, float | None]:
        tuner.tell(statistics)
        baseline_s = tuner.baseline_s if isinstance(tuner, Twin) else None
        if self._facts is not None and isinstance(tuner, Twin):
            self._facts.predicted(tuner.predictions())
        return tuner.ask(), tuner.settled, baseline_s

    def _propose(self, candidate: Candidate) -> None:
        plan = self._synchronizer.plan_for(candidate)
        from_step = self._synchronizer.num_steps + self._lead_steps
        self._plans[from_step] = candidate
        self._group.set_plan(plan, from_step)
        _log.info("from step %d on: %s", from_step, candidate)
        if self._facts is not None:
            self._facts.planned(candidate, from_step)

    def _advise(self, twin: Twin) -> None:
        for line in advice(twin, self._shape):
            _log.info("what would help: %s", line)


def shape_of(members: Deployment) -> Cluster:
    """The cluster that the members of a job are, its speed unknown."""
    hosts = len(set(members.hosts[: members.num_workers]))
    if hosts < 2:
        hosts = members.num_workers  # what all on one host share is memory, and each has its share of that
    deployment = Ownership.JOINT
    if members.num_servers:
        deployment = Ownership.MIXED if members.workers_serve else Ownership.SEPARATE
    return Cluster(
        workers=hosts,
        gbps=1.0,
        overtaking=True,
        servers=members.num_servers,
        deployment=deployment,
        workers_per_host=max(members.num_workers // hosts, 1),
    )
