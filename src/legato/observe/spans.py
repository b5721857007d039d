"""Spans: what a timeline shows, row by row, made from notes.

forward      │ wait ││ update ││ layer 0 ││ layer 1 │ …      what the rank itself does
backward     │ layer 1 ││ layer 0 │
tensor 0     │ queued │ in flight │ arrived │                the life of its tasks; the row above all its phases
tensor 1     │ queued │ in flight │ arrived │
parts        │ part │ part │                                 in flight, each on the first free of several rows
                │ part  │
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from legato.observe.notes import Moment, Notes, What

Value = str | int | float | bool


class Section(IntEnum):
    """Groups of rows, from the top."""

    FORWARD = 0
    BACKWARD = 1
    TENSORS = 2
    PARTS = 3


class Row(NamedTuple):
    """One line of the picture."""

    section: Section
    place: int
    name: str


class Span(NamedTuple):
    """A box of the picture."""

    row: Row
    name: str
    begin_ns: int
    end_ns: int
    details: dict[str, Value]


def spans(notes: Notes) -> list[Span]:
    """Everything that a rank's notes show; what has not ended by the last moment ends there, marked."""
    own = {
        work: Row(section, 0, section.name.lower())
        for section, works in ((Section.FORWARD, ("forward", "wait", "update")), (Section.BACKWARD, ("backward",)))
        for work in works
    }
    shown = [
        Span(own[each.work], _title(each.work, each.name), each.begin_ns, each.end_ns, {"step": each.step})
        for each in notes.stretches
    ]
    moments = sorted(notes.moments, key=lambda moment: moment.ns)
    return [*shown, *_tasks(moments), *parts(moments)]


def _title(work: str, name: str) -> str:
    return name if work in ("forward", "backward") else f"{work} {name}"


@dataclass(slots=True)
class _Task:
    """A task as far as it has come."""

    step: int
    num_bytes: int
    ready_ns: int
    started_ns: int | None = None
    done_ns: int | None = None
    applied_ns: int | None = None


def _take(moment: Moment, tasks: list[_Task]) -> None:
    """Into the tasks of one tensor, which come one after another."""
    if moment.what is What.READY:
        if not tasks or tasks[-1].step != moment.step:
            tasks.append(_Task(moment.step, 0, moment.ns))
        tasks[-1].num_bytes += moment.length
    elif tasks and tasks[-1].step == moment.step:  # otherwise its task became ready before the notes began
        task = tasks[-1]
        if moment.what is What.START and task.started_ns is None:
            task.started_ns = moment.ns
        elif moment.what is What.DONE:
            task.done_ns = moment.ns
        elif moment.what is What.APPLIED and task.done_ns is not None:
            task.applied_ns = moment.ns


def _tasks(moments: Sequence[Moment]) -> Iterable[Span]:
    """The lives of tasks. Gradients come in the reverse order of use: the last to come is the first row."""
    tensors: dict[str, list[_Task]] = {}
    for moment in moments:
        for name in moment.tensors:
            _take(moment, tensors.setdefault(name, []))
    lived = [(name, tasks) for name, tasks in tensors.items() if tasks]
    for index, (name, tasks) in enumerate(sorted(lived, key=lambda each: -each[1][0].ready_ns)):
        row = Row(Section.TENSORS, index, name)
        for task in tasks:
            yield from _life(row, task, moments[-1].ns)


def _life(row: Row, task: _Task, last_ns: int) -> Iterable[Span]:
    known = [ns for ns in (task.ready_ns, task.started_ns, task.done_ns, task.applied_ns) if ns is not None]
    is_over = task.done_ns is not None
    end_ns = known[-1] if is_over else last_ns
    details: dict[str, Value] = {"step": task.step, "bytes": task.num_bytes}
    if not is_over:
        details["unfinished"] = True
    yield Span(row, f"step {task.step}", task.ready_ns, end_ns, details)
    phases = [
        ("queued", task.ready_ns, task.started_ns),
        ("in flight", task.started_ns, task.done_ns),
        ("arrived", task.done_ns, task.applied_ns),
    ]
    for name, begin_ns, next_ns in phases:
        until_ns = end_ns if next_ns is None else next_ns
        if begin_ns is not None and begin_ns < until_ns:
            yield Span(row, name, begin_ns, until_ns, {})


class _Flight(NamedTuple):
    """A part in flight."""

    lane: int
    began: Moment
    sent_ns: int | None = None


def parts(moments: Sequence[Moment]) -> Iterable[Span]:
    """Parts in flight, each on the first row that is free."""
    free: list[int] = []
    num_lanes = 0
    flights: dict[tuple[tuple[str, ...], int, str, int], _Flight] = {}
    for moment in moments:
        key = (moment.tensors, moment.step, moment.stage, moment.offset)
        if moment.what is What.START:
            if free:
                lane = heappop(free)
            else:
                lane, num_lanes = num_lanes, num_lanes + 1
            flights[key] = _Flight(lane, moment)
        elif moment.what is What.SENT and key in flights:
            flights[key] = flights[key]._replace(sent_ns=moment.ns)
        elif moment.what is What.FINISH and key in flights:
            flight = flights.pop(key)
            heappush(free, flight.lane)
            yield _flown(flight, moment.ns, {})
    for flight in flights.values():
        yield _flown(flight, moments[-1].ns, {"unfinished": True})


def _flown(flight: _Flight, end_ns: int, details: dict[str, Value]) -> Span:
    began = flight.began
    others = f" and {len(began.tensors) - 1} more" if len(began.tensors) > 1 else ""
    details = {"step": began.step, "stage": began.stage, "offset": began.offset, "bytes": began.length, **details}
    if flight.sent_ns is not None:
        details["sent_after_us"] = (flight.sent_ns - began.ns) / 1e3
    row = Row(Section.PARTS, flight.lane, f"part in flight {flight.lane + 1}")
    return Span(row, f"{began.tensors[0]}{others} @{began.offset}", began.ns, end_ns, details)
