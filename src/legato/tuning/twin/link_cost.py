"""Link cost: what a part costs on a cluster's simulated links.

A part costs two things: how long it keeps the busiest link, which is the pause between two ends when parts follow each
other, and how long it takes by itself. Each is a line over its bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from legato.core.part import Part, Stage
from legato.sim.cluster import Cluster
from legato.sim.network import Arrival, Progress, make_network

_SIZES = (1_000_000, 2_000_000)
_WINDOW_PARTS, _RUN_PARTS = 4, 24


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a function of bytes."""

    start_s: float
    """What a part costs before its first byte."""
    seconds_per_byte: float
    """What each byte adds."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """What parts cost."""

    alone: Line
    """By themselves."""
    spacing: Line
    """One after the other, for as long as the links are kept busy."""


def link_cost_of(cluster: Cluster) -> LinkCost:
    """Ask the network: let it carry parts of two sizes, alone and in a row."""
    return LinkCost(
        _through(*(_ends_s(cluster, size, 1)[-1] for size in _SIZES)),
        _through(*(_pause_s(cluster, size) for size in _SIZES)),
    )


def _through(small_s: float, large_s: float) -> Line:
    per_byte = (large_s - small_s) / (_SIZES[1] - _SIZES[0])
    return Line(max(small_s - per_byte * _SIZES[0], 0.0), per_byte)


def _pause_s(cluster: Cluster, num_bytes: int) -> float:
    """Mean pause between two ends, while the links are kept busy."""
    ends_s = _ends_s(cluster, num_bytes, _RUN_PARTS)
    half = _RUN_PARTS // 2
    return (ends_s[-_WINDOW_PARTS] - ends_s[half - _WINDOW_PARTS]) / half


def _ends_s(cluster: Cluster, num_bytes: int, parts: int) -> list[float]:
    """When parts of one size end, a few of them being under way at once."""
    network, _ = make_network(cluster)
    tie = count()
    events: list[tuple[float, int, Part, Progress]] = []
    waiting = [Part(0, 0, Stage.SYNC, place, num_bytes) for place in reversed(range(parts))]
    ends_s: list[float] = []

    def expect(arrivals: Iterable[Arrival]) -> None:
        for when, _, part, progress in arrivals:
            heappush(events, (when, next(tie), part, progress))

    for _ in range(min(_WINDOW_PARTS, parts)):
        expect(network.start(0.0, 0, waiting.pop()))
    while events:
        now, _, part, progress = heappop(events)
        if progress is not Progress.FINISHED:
            expect(network.progressed(now, 0, part, progress))
            continue
        ends_s.append(now)
        if waiting:
            expect(network.start(now, 0, waiting.pop()))
    return ends_s
