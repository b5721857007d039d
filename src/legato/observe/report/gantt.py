"""Gantt charts: what ranks did when, as `page.js` draws it."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from legato.observe.notes import Work
from legato.observe.report.analysis import Analysis, short_name
from legato.observe.report.recording import Rank, Recording

MAX_BOXES = 60_000
"""Boxes that a page holds, some 3 MB; of longer recordings it shows the steps around the usual one."""
_MARGIN = 0.06
"""Of a step, to be seen before and after it."""
_WORKS: tuple[Work, ...] = ("forward", "backward", "update", "wait")
_NOTICEABLE_NS = 100_000
"""A gradient that takes longer to be ready was copied; hooks alone take less, also on a busy machine."""


def gantt(
    recording: Recording, analysis: Analysis, title: str, *, note: str = "", still: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The chart, and what it leaves out. A still one shows the usual step and has no controls."""
    usual = analysis.usual_step
    steps = _steps(recording, usual)
    origin_ns = _origin_ns(recording, steps)
    tensors = list(dict.fromkeys(tensor for rank in recording.ranks for tensor in rank.tensors))
    place = {tensor: index for index, tensor in enumerate(tensors)}
    names: dict[str, int] = {}
    ranks = [_rank(rank, analysis, steps, origin_ns, place, names) for rank in recording.ranks]
    lead = [step for step in analysis.steps if step.rank == recording.ranks[0].number and step.number in steps]
    bounds = [[step.number, _us(step.begin_ns - origin_ns), _us(step.end_ns - origin_ns)] for step in lead]
    seen = next(([begin, end] for number, begin, end in bounds if number == usual), [0.0, _end_us(ranks)])
    margin = (seen[1] - seen[0]) * _MARGIN
    chart = {
        "title": title,
        "note": note,
        "still": still,
        "names": list(names),
        "tensors": [short_name(tensor) for tensor in tensors],
        "steps": bounds,
        "view": [seen[0] - margin, seen[1] + margin],
        "zero": seen[0],
        "ranks": ranks,
    }
    return chart, tuple(_left_out(recording, steps))


def _steps(recording: Recording, usual: int | None) -> set[int]:
    """As many steps around the usual one as a page can hold."""
    num_boxes: Counter[int] = Counter()
    for rank in recording.ranks:
        num_boxes.update(stint.step for stint in rank.stints)
        num_boxes.update(flight.step for flight in rank.flights)
    numbers = sorted(num_boxes)
    middle = numbers.index(usual) if usual is not None else 0
    chosen: set[int] = set()
    room = MAX_BOXES
    for number in sorted(numbers, key=lambda number: abs(number - numbers[middle])):
        room -= num_boxes[number]
        if room < 0 and chosen:
            break
        chosen.add(number)
    return chosen


def _left_out(recording: Recording, steps: set[int]) -> Iterator[str]:
    everything = {stint.step for rank in recording.ranks for stint in rank.stints} | {
        flight.step for rank in recording.ranks for flight in rank.flights
    }
    if steps < everything:
        yield (
            f"The chart holds steps {min(steps)} to {max(steps)} of {min(everything)} to {max(everything)}, at most "
            f"{MAX_BOXES:,} boxes; all other figures are of the whole recording."
        )
    for rank in recording.ranks:
        if "incomplete" in rank.label:
            yield f"{rank.title} is {rank.label}."


def _origin_ns(recording: Recording, steps: set[int]) -> int:
    return min(
        (
            each.begin_ns
            for rank in recording.ranks
            for boxes in (rank.stints, rank.flights)
            for each in boxes
            if each.step in steps
        ),
        default=0,
    )


def _rank(
    rank: Rank, analysis: Analysis, steps: set[int], origin_ns: int, place: dict[str, int], names: dict[str, int]
) -> dict[str, Any]:
    """Boxes are lists: [kind or lane, begin, length, name, step, …], times in microseconds."""
    return {
        "title": rank.title,
        "label": rank.label,
        "lanes": rank.num_lanes,
        "works": [
            [
                _WORKS.index(stint.work),
                _us(stint.begin_ns - origin_ns),
                _us(stint.end_ns - stint.begin_ns),
                names.setdefault(stint.name, len(names)),
                stint.step,
            ]
            for stint in rank.stints
            if stint.step in steps
        ],
        "copies": [
            [0, _us(begin_ns - origin_ns), _us(end_ns - begin_ns), place[tensor], step]
            for begin_ns, end_ns, tensor, step in sorted(_copies(rank))
            if step in steps
        ],
        "flights": [
            [
                flight.lane,
                _us(flight.begin_ns - origin_ns),
                _us(flight.end_ns - flight.begin_ns),
                place.get(_first_of(flight.tensor), 0),
                flight.step,
                flight.num_bytes,
                -1 if flight.sent_ns is None else _us(flight.sent_ns - flight.begin_ns),
            ]
            for flight in rank.flights
            if flight.step in steps
        ],
        "preemptions": [
            [
                _us(each.ns - origin_ns),
                place.get(_first_of(each.tensor), 0),
                each.step,
                [place.get(_first_of(tensor), 0) for tensor in each.overtaken],
            ]
            for each in analysis.preemptions
            if each.rank == rank.number and each.step in steps
        ],
    }


def _copies(rank: Rank) -> Iterator[tuple[int, int, str, int]]:
    """From the latest gradient of a step until one can be sent, with no backward between: on an accelerator, its copy.

    The latest, not its own: a tensor of a bucket is ready with the last of its bucket.
    """
    passes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for stint in rank.stints:
        if stint.work == "backward":
            passes[stint.step].append((stint.begin_ns, stint.end_ns))
    for task in rank.tasks:
        boxes = passes[task.step]
        place = bisect_right(boxes, task.ready_ns, key=lambda box: box[0])
        if place and task.ready_ns - boxes[place - 1][1] > _NOTICEABLE_NS:
            yield boxes[place - 1][1], task.ready_ns, task.tensor, task.step


def _first_of(bucket: str) -> str:
    """Parts of a bucket name its first tensor, and how many there are (spans.py)."""
    return bucket.partition(" and ")[0]


def _us(ns: int) -> float:
    return round(ns / 1e3, 1)


def _end_us(ranks: Sequence[dict[str, Any]]) -> float:
    return max((box[1] + box[2] for rank in ranks for box in (*rank["works"], *rank["flights"])), default=1.0)
