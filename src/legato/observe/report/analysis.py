"""Analyses: where the time of each step went, tensor by tensor and rank by rank.

A step lasts from the end of one backward pass to the end of the next, as benchmarks count it:

    │ end of backward                          │ end of backward
    ├─ idle ─┤ wait ├─ forward ─┤─ backward ───┤
             │ exposed │ compute: all that is left of the passes
    ══ in flight ══════════   ═══ in flight ═══    hidden: while it computes

Exposed is what a rank waited for sums, and what it took to send the last gradients of a pass. Modules without
parameters leave no box of their own, so whatever else passes between a step's first box and its last gradient is
computation. Idle is what is left: between two steps nothing tells whether the rank loads data or sleeps.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import mean, median

from legato.observe.report.intervals import Interval, length, overlap, union
from legato.observe.report.recording import Flight, Rank, Recording, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one rank: `compute_ns`, `exposed_ns` and `idle_ns` add up to it."""

    rank: int
    number: int
    begin_ns: int
    end_ns: int
    compute_ns: int
    exposed_ns: int
    idle_ns: int
    hidden_ns: int
    """Communication behind computation."""
    is_whole: bool
    """Whether the end of the step before is known; otherwise it begins with its own first box."""

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A task whose first bytes left before the last of others that were ready and under way before it."""

    rank: int
    ns: int
    step: int
    tensor: str
    overtaken: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTimes:
    """What became of one tensor's tasks; times are medians over ranks and steps."""

    name: str
    num_bytes: int
    queued_s: float
    """From its gradient being there to its first part starting."""
    flying_s: float
    """From there until its whole sum is back."""
    slowest_s: float
    """The longest of these."""
    arrived_s: float
    """Until it is applied: the slack it had."""
    exposed_s: float
    """What forward passes waited for it, the mean of ranks and steps."""
    times_preempted: float
    """How often others went before its last bytes, in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The usual step: means over all ranks and the middle half of the steps, so that its parts add up to it."""

    step_s: float
    compute_s: float
    exposed_s: float
    idle_s: float
    hidden_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What a recording says."""

    steps: tuple[Step, ...]
    """By rank and number; none where no layers were recorded."""
    summary: Summary | None
    tensors: tuple[TensorTimes, ...]
    """The most urgent first."""
    preemptions: tuple[Preemption, ...]
    """By rank and time."""

    @property
    def whole_steps(self) -> tuple[Step, ...]:
        """Those that count: whole ones, where there are any."""
        return tuple(step for step in self.steps if step.is_whole) or self.steps

    @property
    def usual_step(self) -> int | None:
        """The number of the step whose time is the median: the one to look at."""
        ranked = self._numbers()
        return ranked[len(ranked) // 2] if ranked else None

    @property
    def usual_steps(self) -> tuple[Step, ...]:
        """Without the quarter that took longest and the quarter that took least."""
        ranked = self._numbers()
        usual = set(ranked[len(ranked) // 4 : len(ranked) - len(ranked) // 4])
        return tuple(step for step in self.whole_steps if step.number in usual)

    def _numbers(self) -> list[int]:
        """Of whole steps, by their time."""
        by_number: dict[int, list[int]] = defaultdict(list)
        for step in self.whole_steps:
            by_number[step.number].append(step.ns)
        return sorted(by_number, key=lambda number: (median(by_number[number]), number))

    def lateness(self) -> dict[tuple[int, int], float]:
        """How much longer a rank computed than the median of the ranks, by (rank, step): 0.5 is half as long again."""
        by_number: dict[int, list[Step]] = defaultdict(list)
        for step in self.steps:
            by_number[step.number].append(step)
        late = {}
        for number, steps in by_number.items():
            usual_ns = median(step.compute_ns for step in steps)
            for step in steps:
                late[step.rank, number] = step.compute_ns / usual_ns - 1 if usual_ns else 0.0
        return late


def analyse(recording: Recording) -> Analysis:
    """Everything at once; a recording of some hundred thousand boxes takes a second or two."""
    steps = [step for rank in recording.ranks for step in _steps(rank)]
    preemptions = [each for rank in recording.ranks for each in _preemptions(rank)]
    analysis = Analysis(
        steps=tuple(steps),
        summary=None,
        tensors=tuple(_tensors(recording, preemptions)),
        preemptions=tuple(preemptions),
    )
    return replace(analysis, summary=summed_up(analysis.usual_steps)) if steps else analysis


def summed_up(steps: Sequence[Step]) -> Summary:
    """Their mean."""
    return Summary(
        step_s=mean(step.ns for step in steps) * 1e-9,
        compute_s=mean(step.compute_ns for step in steps) * 1e-9,
        exposed_s=mean(step.exposed_ns for step in steps) * 1e-9,
        idle_s=mean(step.idle_ns for step in steps) * 1e-9,
        hidden_s=mean(step.hidden_ns for step in steps) * 1e-9,
    )


def _steps(rank: Rank) -> Iterator[Step]:
    """Those that have a backward pass."""
    waits = union((stint.begin_ns, stint.end_ns) for stint in rank.stints if stint.work == "wait")
    flying = union((flight.begin_ns, flight.end_ns) for flight in rank.flights)
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for stint in rank.stints:
        begins.setdefault(stint.step, stint.begin_ns)
        if stint.work == "backward":
            ends[stint.step] = max(stint.end_ns, ends.get(stint.step, 0))
    for number, end_ns in sorted(ends.items()):
        before_ns = ends.get(number - 1)
        begin_ns = begins[number] if before_ns is None else before_ns
        passes = [(max(begins[number], begin_ns), end_ns)]
        exposed = overlap(waits, [(begin_ns, end_ns)])
        computing = _without(passes, exposed)
        compute_ns, exposed_ns = length(computing), length(exposed)
        yield Step(
            rank=rank.number,
            number=number,
            begin_ns=begin_ns,
            end_ns=end_ns,
            compute_ns=compute_ns,
            exposed_ns=exposed_ns,
            idle_ns=end_ns - begin_ns - compute_ns - exposed_ns,
            hidden_ns=length(overlap(flying, computing)),
            is_whole=before_ns is not None,
        )


def _without(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The time of one union that is not in another."""
    left = []
    for begin, end in these:
        for hole_begin, hole_end in overlap([(begin, end)], those):
            left.append((begin, hole_begin))
            begin = hole_end  # noqa: PLW2901 (what is left of it)
        left.append((begin, end))
    return union(left)


def _preemptions(rank: Rank) -> Iterator[Preemption]:
    """In each step, by the time of the first part."""
    ready_ns = {(task.tensor, task.step): task.ready_ns for task in rank.tasks}

    def left_ns(flight: Flight) -> int:
        return flight.begin_ns if flight.sent_ns is None else flight.sent_ns

    first: dict[tuple[str, int], Flight] = {}
    last_ns: dict[tuple[str, int], int] = {}
    for flight in rank.flights:
        task = (flight.tensor, flight.step)
        first.setdefault(task, flight)
        last_ns[task] = max(left_ns(flight), last_ns.get(task, 0))
    under_way: list[tuple[str, int]] = []
    for task, flight in first.items():  # by the start of their first parts
        under_way = [each for each in under_way if last_ns[each] > flight.begin_ns]
        overtaken = [
            other
            for other in under_way
            if last_ns[other] > left_ns(flight) and ready_ns.get(other, 0) < ready_ns.get(task, 0)
        ]
        if overtaken:
            yield Preemption(
                rank=rank.number,
                ns=flight.begin_ns,
                step=flight.step,
                tensor=flight.tensor,
                overtaken=tuple(tensor for tensor, _ in overtaken),
            )
        under_way.append(task)


def short_name(tensor: str) -> str:
    """Without the name of the schedule that it belongs to."""
    return tensor.rpartition("/")[2]


def _tensors(recording: Recording, preemptions: Sequence[Preemption]) -> Iterator[TensorTimes]:
    waited_ns: dict[str, int] = defaultdict(int)
    for rank in recording.ranks:
        for stint in rank.stints:
            if stint.work == "wait":
                waited_ns[stint.name] += stint.end_ns - stint.begin_ns
    preempted: dict[str, int] = defaultdict(int)
    for preemption in preemptions:
        for tensor in preemption.overtaken:
            preempted[tensor] += 1
    order = {tensor: place for rank in reversed(recording.ranks) for place, tensor in enumerate(rank.tensors)}
    tasks = sorted(
        (task for rank in recording.ranks for task in rank.tasks if task.is_over), key=lambda task: order[task.tensor]
    )
    for name, group in groupby(tasks, key=lambda task: task.tensor):
        yield _tensor(name, list(group), waited_ns[short_name(name)], preempted[name])


def _tensor(name: str, tasks: Sequence[Task], waited_ns: int, preempted: int) -> TensorTimes:
    return TensorTimes(
        name=name,
        num_bytes=max(task.num_bytes for task in tasks),
        queued_s=median(task.queued_ns for task in tasks) * 1e-9,
        flying_s=median(task.flying_ns for task in tasks) * 1e-9,
        slowest_s=max(task.flying_ns for task in tasks) * 1e-9,
        arrived_s=median(task.arrived_ns for task in tasks) * 1e-9,
        exposed_s=waited_ns * 1e-9 / len(tasks),
        times_preempted=preempted / len(tasks),
    )
