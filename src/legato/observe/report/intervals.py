"""Intervals: sorted, disjoint stretches of time, and how much of one set lies in another."""

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]
"""(begin, end)."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, each instant once, in order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif begin < end:
            joined.append((begin, end))
    return joined


def overlap(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The time that lies in both of two unions."""
    shared: list[Interval] = []
    here = there = 0
    while here < len(these) and there < len(those):
        begin = max(these[here][0], those[there][0])
        end = min(these[here][1], those[there][1])
        if begin < end:
            shared.append((begin, end))
        if these[here][1] < those[there][1]:
            here += 1
        else:
            there += 1
    return shared


def length(intervals: Iterable[Interval]) -> int:
    """Of a union."""
    return sum(end - begin for begin, end in intervals)
