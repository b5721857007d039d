"""The latest step of a timeline that is still being taken."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeVar

from legato.observe.notes import Notes, Stretch
from legato.observe.spans import Span, parts

T = TypeVar("T")

MAX_MOMENTS = 20_000
"""Of a step with more, the last ones: whoever looks does so while training runs."""


class LatestStep(NamedTuple):
    """From the end of one backward pass to the end of the next, as reports count it."""

    number: int
    begin_ns: int
    end_ns: int
    stretches: list[Stretch]
    parts: list[Span]
    """In flight, each on the first free of several rows."""


def latest_step(notes: Notes) -> LatestStep | None:
    """The last step whose backward pass is over; None where there were not yet two."""
    newest = notes.stretches[-1].step if notes.stretches else 0
    recent = list(takewhile(lambda each: each.step >= newest - 2, _backwards(notes.stretches)))
    before, last = (
        [each for each in recent if each.step == number and each.work == "backward"]
        for number in (newest - 2, newest - 1)
    )
    if not before or not last:
        return None
    begin_ns, end_ns = (max(each.end_ns for each in passes) for passes in (before, last))
    stretches = [each for each in reversed(recent) if each.end_ns > begin_ns and each.begin_ns < end_ns]
    # What is in flight when a backward pass ends has started in it.
    since_ns = min(each.begin_ns for each in before)
    moments = [each for each in _backwards(notes.moments, MAX_MOMENTS) if since_ns <= each.ns < end_ns]
    flown = [span for span in parts(sorted(moments, key=lambda each: each.ns)) if span.end_ns > begin_ns]
    return LatestStep(newest - 1, begin_ns, end_ns, stretches, flown)


def _backwards(kept: Sequence[T], most: int | None = None) -> Iterator[T]:
    """From the last that is there now; others may be added meanwhile."""
    last = len(kept) - 1
    stop = -1 if most is None else max(last - most, -1)
    return (kept[place] for place in range(last, stop, -1))
