"""The scheduler: events and the time in, commands out.

The life of one bucket, for a plan of one stage and of two:

    tensors ready         SYNC started             SYNC finished
    ──────────────► QUEUED ──────────► IN FLIGHT ──────────────► COMPLETE
                     ▲  │               │   ▲
                     │  └── part by ────┘   └── while parts are left
                     │      part, as credit allows
                     └── REDUCE_SCATTER finished: back to the queue as ALL_GATHER
                         (with a stage barrier: when every bucket of the step has come so far)

A part takes credit from its start until it is sent, or until it has finished where the transport cannot tell. A part
larger than the whole credit travels alone: the window is never exceeded by more than that one part, and nothing can be
too large to be sent.

A more urgent bucket that becomes ready overtakes at the next part. Order is total: (rank, step, arrival).

A plan with a sequence leaves no choice: whose turn it is starts, and until it is ready nobody does. Steps have their
turns one after the other, so that all ranks start the same parts in the same order, whatever is ready where and when:

    sequence    RS2 RS1 AG2 RS0 AG1 AG0          ready here    1   2     0
                                                 started           RS2 RS1 …
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from legato.core.part import Part
from legato.core.plan import Plan, Ranges
from legato.core.task import Task, Tensor
from legato.errors import PlanError


class Ready(NamedTuple):
    """The gradient of a tensor is there."""

    task: Task


class Sent(NamedTuple):
    """The transport has handed a part to the network: its credit comes back. Not every transport can tell."""

    part: Part


class Finished(NamedTuple):
    """The transport has finished a part that it was told to start; if it was not `Sent` before, it is now."""

    part: Part


class Replan(NamedTuple):
    """From `step` on, follow `plan`. No task of that step may have been ready yet."""

    step: int
    plan: Plan


class Start(NamedTuple):
    """Tell the transport to start a part."""

    part: Part


class Complete(NamedTuple):
    """A task is done: its sum has arrived. Times are those that came in with the events."""

    task: Task
    ready_s: float
    started_s: float
    finished_s: float


Event = Ready | Sent | Finished | Replan
Command = Start | Complete


class _Layout:
    """A plan applied to the tensors: computed once per plan, shared by all its steps."""

    def __init__(self, tensors: Sequence[Tensor], plan: Plan) -> None:
        plan.check(tensors)
        self.plan = plan
        self.bucket_of = plan.bucket_of
        self.parts = plan.parts(tensors)


@dataclass(slots=True, eq=False)
class _Progress:
    """One bucket on its way through one step."""

    step: int
    index: int
    tensors: tuple[int, ...]
    ranges: Ranges
    unready: int
    queued: bool = False
    """Whether a part of the present stage may start, as far as this bucket is concerned."""
    stage_index: int = 0
    next_range: int = 0
    unfinished: int = 0
    started_s: float = 0.0


class _Step:
    """The buckets of one step."""

    def __init__(self, number: int, layout: _Layout) -> None:
        self.layout = layout
        self.ready_s: dict[int, float] = {}
        self.buckets = [
            _Progress(number, index, tensors, ranges, len(tensors))
            for index, (tensors, ranges) in enumerate(zip(layout.plan.buckets, layout.parts, strict=True))
        ]
        self.incomplete = len(self.buckets)
        self.at_barrier: list[_Progress] = []
        self.turns = deque(layout.plan.sequence or ())

    def in_turn(self) -> _Progress | None:
        """The bucket whose turn it is, if it is ready for it."""
        stage, index = self.turns[0]
        progress = self.buckets[index]
        at_stage = self.layout.plan.stages[progress.stage_index] is stage
        return progress if progress.queued and at_stage else None


class Scheduler:
    """Turns ready tasks into started parts, as its plan says.

    One scheduler serves one rank for as long as its tensors stay the same. It owns the queue and the credit; it is not
    thread-safe, its caller is the one thread that owns it.
    """

    def __init__(self, tensors: Sequence[Tensor], plan: Plan) -> None:
        self._tensors = tuple(tensors)
        self._layouts: list[tuple[int, _Layout]] = [(0, _Layout(self._tensors, plan))]
        self._steps: dict[int, _Step] = {}
        self._newest_step = -1
        self._queue: list[tuple[int, int, int, _Progress]] = []
        self._in_sequence: deque[_Step] = deque()
        self._arrivals = 0
        self.in_flight_bytes = 0
        self._in_flight_parts = 0
        self._sent: set[Part] = set()
        """Parts whose credit has come back, and that have not finished."""

    @property
    def idle(self) -> bool:
        """Whether every task that became ready is complete."""
        return not self._steps

    def plan_at(self, step: int) -> Plan:
        """The plan that a step follows."""
        return self._layout_at(step).plan

    def handle(self, now: float, event: Event) -> list[Command]:
        """Take one event and say what is to be done."""
        commands: list[Command] = []
        if isinstance(event, Finished):
            self._finish(now, event.part, commands)
        elif isinstance(event, Sent):
            self._sent.add(event.part)
            self._give_back(event.part)
        elif isinstance(event, Ready):
            self._make_ready(now, event.task)
        else:
            self._replan(event)
        self._start_what_fits(now, commands)
        return commands

    def __repr__(self) -> str:
        queued = ", ".join(
            f"{progress.tensors}@{step}" for _, step, _, progress in sorted(self._queue, key=lambda e: e[:3])
        )
        turn = ""
        if self._in_sequence:
            stage, index = self._in_sequence[0].turns[0]
            progress = self._in_sequence[0].buckets[index]
            turn = f" turn={stage.name}{progress.tensors}@{progress.step}"
        return f"<Scheduler queued=[{queued}]{turn} in_flight={self.in_flight_bytes} B>"

    def _layout_at(self, step: int) -> _Layout:
        return next(layout for from_step, layout in reversed(self._layouts) if from_step <= step)

    def _replan(self, event: Replan) -> None:
        if event.step <= self._newest_step:
            raise PlanError(f"plan: step {event.step} has begun; a new plan can start at step {self._newest_step + 1}")
        oldest = min(self._steps, default=self._newest_step)
        kept = [entry for entry in self._layouts if entry[0] < event.step]
        # A layout is still needed when no later one starts at or before the oldest step that is under way.
        kept = [entry for place, entry in enumerate(kept) if place + 1 == len(kept) or kept[place + 1][0] > oldest]
        self._layouts = [*kept, (event.step, _Layout(self._tensors, event.plan))]

    def _make_ready(self, now: float, task: Task) -> None:
        step = self._steps.get(task.step)
        if step is None:
            if task.step <= self._newest_step:
                raise ValueError(f"{task}: the step is over")
            step = self._steps[task.step] = _Step(task.step, self._layout_at(task.step))
            self._newest_step = task.step
            if step.turns:
                self._in_sequence.append(step)
        if task.tensor in step.ready_s:
            raise ValueError(f"{task}: ready twice")
        step.ready_s[task.tensor] = now
        progress = step.buckets[step.layout.bucket_of[task.tensor]]
        progress.unready -= 1
        if progress.unready == 0:
            self._enqueue(step, progress)

    def _enqueue(self, step: _Step, progress: _Progress) -> None:
        plan = step.layout.plan
        progress.next_range = 0
        progress.unfinished = len(progress.ranges)
        progress.queued = True
        if plan.sequence is not None:
            return
        rank = plan.ranks[progress.stage_index][progress.index]
        heappush(self._queue, (rank, progress.step, self._arrivals, progress))
        self._arrivals += 1

    def _start_what_fits(self, now: float, commands: list[Command]) -> None:
        """Start parts from the front of the queue; one that does not fit holds back those behind it."""
        while (progress := self._front()) is not None:
            plan = self._steps[progress.step].layout.plan
            stage = plan.stages[progress.stage_index]
            offset, length = progress.ranges[progress.next_range]
            limit = plan.credit_bytes
            if limit is not None and self._in_flight_parts and self.in_flight_bytes + length > limit:
                return
            self.in_flight_bytes += length
            self._in_flight_parts += 1
            if progress.next_range == 0 and progress.stage_index == 0:
                progress.started_s = now
            progress.next_range += 1
            progress.queued = progress.next_range < len(progress.ranges)
            self._move_on(progress)
            commands.append(Start(Part(progress.step, progress.index, stage, offset, length)))

    def _front(self) -> _Progress | None:
        """The bucket that starts a part next."""
        if self._queue:
            return self._queue[0][3]
        return self._in_sequence[0].in_turn() if self._in_sequence else None

    def _move_on(self, started: _Progress) -> None:
        """The front has started a part: who is at the front now?"""
        if self._queue:
            if not started.queued:
                heappop(self._queue)
            return
        turns = self._in_sequence[0].turns
        turns.popleft()
        if not turns:
            self._in_sequence.popleft()

    def _finish(self, now: float, part: Part, commands: list[Command]) -> None:
        if part in self._sent:
            self._sent.remove(part)
        else:
            self._give_back(part)
        step = self._steps[part.step]
        progress = step.buckets[part.bucket]
        progress.unfinished -= 1
        if progress.unfinished > 0:
            return
        plan = step.layout.plan
        if progress.stage_index + 1 < len(plan.stages):
            progress.stage_index += 1
            if plan.stage_barrier:
                self._wait_at_barrier(step, progress)
            else:
                self._enqueue(step, progress)
            return
        commands.extend(
            Complete(Task(part.step, tensor), step.ready_s[tensor], progress.started_s, now)
            for tensor in progress.tensors
        )
        step.incomplete -= 1
        if step.incomplete == 0:
            del self._steps[part.step]

    def _give_back(self, part: Part) -> None:
        self.in_flight_bytes -= part.length
        self._in_flight_parts -= 1

    def _wait_at_barrier(self, step: _Step, progress: _Progress) -> None:
        step.at_barrier.append(progress)
        if len(step.at_barrier) == len(step.buckets):
            waiting, step.at_barrier = step.at_barrier, []
            for released in waiting:
                self._enqueue(step, released)
