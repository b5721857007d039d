"""Stragglers: the member that all others wait for in every step, and what it is slow at. Kept by the conductor and free
of I/O.

    every rank, every few steps ──► Pace ──► all of these steps here? ──► who, at what ──► twice the same: rank 0's log
                                                                                     └─► often, and far slower: evicted

Ranks that average gradients take the same time for a step, whoever is slow. So what a rank is slow at is not in its
steps but in what they are made of: the straggler computes, or loads data, for longer than the others and waits less.
With a slow link nobody computes for longer and all wait. Then it is the one to whom, or from whom, nothing is fast: a
connection has two ends, and the other end has fast ones elsewhere. Between two hosts nobody can tell.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from legato.transports.rendezvous.messages import Pace, Straggling

SLOWER = 1.2
"""Times the others' median: less is noise."""
WORTHWHILE = 0.1
"""Of a step: who costs the others less than this is not named."""
WAITING = 0.2
"""Of a step: where less than this is spent waiting, no link is too slow."""
LINK_SHARE = 0.5
"""Of the others' median: slower links are named."""
EVICTED_SLOWER = 2.0
"""Times the others' median: who is slower than this may be evicted,"""
EVICTED_WINDOWS = 5
"""when so many windows in a row have shown it."""
QUIET_S = 60.0
"""Between two lines, however often things change."""
_KEPT_WINDOWS = 4
"""That not all ranks have reported: those of short steps report nothing."""


class Cause(StrEnum):
    """What a straggler is slow at."""

    COMPUTE = "compute"
    INPUT = "input"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Straggler:
    """Who is slow, at what, and the figures that show it."""

    member: int
    cause: Cause
    words: str
    times: float
    """How much slower than the others it is."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """The others shall go on without a member."""

    member: int
    text: str


class Stragglers:
    """Reports of ranks in, a line for rank 0's log out: when the slowest is another one, or slow at something else.

    Where it `evicts`, who is far slower for long is evicted, one at a time.
    """

    def __init__(self, name: Callable[[int], str], *, evicts: bool) -> None:
        self._name = name
        self._evicts = evicts
        self._num_slow_windows = 0
        self._windows: dict[int, dict[int, Pace]] = {}
        self._last: tuple[int, Cause] | None = None
        self._named: tuple[int, Cause] | None = None
        self._quiet_until_s: float | None = None

    def pace(self, rank: int, report: Pace, num_workers: int, now_s: float) -> list[Straggling | Eviction]:
        """A rank reports its last steps; `num_workers` are expected to."""
        window = self._windows.setdefault(report.step, {})
        window[rank] = report
        if len(window) < num_workers:
            for step in list(self._windows)[:-_KEPT_WINDOWS]:
                del self._windows[step]
            return []
        self._windows.clear()
        found = slowest(window)
        seen = None if found is None else (found.member, found.cause)
        confirmed, self._last = seen == self._last, seen
        is_far = found is not None and found.times > EVICTED_SLOWER
        self._num_slow_windows = self._num_slow_windows * confirmed + 1 if is_far else 0
        if found is not None and self._evicts and self._num_slow_windows == EVICTED_WINDOWS:
            name = self._name(found.member)
            return [Eviction(found.member, f"{name} is evicted, because the others wait for it: {found.words}")]
        if not confirmed or seen == self._named:
            return []
        if found is None:
            self._named = None
            return []
        if self._quiet_until_s is not None and now_s < self._quiet_until_s:
            return []
        self._named, self._quiet_until_s = seen, now_s + QUIET_S
        return [Straggling(f"{self._name(found.member)} is the slowest: {found.words}{_advice(found, num_workers)}")]


def slowest(paces: Mapping[int, Pace]) -> Straggler | None:
    """By what all workers have reported of the same steps."""
    if len(paces) < 2:
        return None
    step_s = median(pace.step_s for pace in paces.values())
    return _slow_at_work(paces, step_s) or _slow_link(paces, step_s)


def _slow_at_work(paces: Mapping[int, Pace], step_s: float) -> Straggler | None:
    """What it does for longer than the others, and they wait for."""
    found: dict[float, Straggler] = {}
    for cause, seconds_of in ((Cause.COMPUTE, _compute_s), (Cause.INPUT, _input_s)):
        rank = max(paces, key=lambda each: seconds_of(paces[each]))
        others = [pace for each, pace in paces.items() if each != rank]
        own_s, others_s = seconds_of(paces[rank]), median(map(seconds_of, others))
        excess_s = own_s - others_s
        # A rank that nobody waits for may take its time.
        waited_s = median(pace.waited_s for pace in others)
        if own_s > SLOWER * others_s and excess_s > WORTHWHILE * step_s and waited_s > 0.5 * excess_s:
            what = "computing" if cause is Cause.COMPUTE else "on data, before its first layer"
            words = f"it spends {own_s * 1e3:.0f} ms a step {what}, and the others {others_s * 1e3:.0f} ms"
            found[excess_s] = Straggler(rank, cause, words, own_s / max(others_s, 1e-9))
    return found[max(found)] if found else None


def _slow_link(paces: Mapping[int, Pace], step_s: float) -> Straggler | None:
    """Nothing that leaves it is fast, or nothing that comes to it."""
    if median(pace.waited_s for pace in paces.values()) < WAITING * step_s:
        return None
    fastest = {rank: pace.link_bytes_per_s for rank, pace in paces.items() if pace.link_bytes_per_s > 0}
    if len(fastest) < 3:
        return None
    rank = min(fastest, key=lambda each: fastest[each])
    others = median(rate for each, rate in fastest.items() if each != rank)
    if fastest[rank] < LINK_SHARE * others:
        words = f"its link sends {_rate(fastest[rank])}, and those of the others {_rate(others)}"
        return Straggler(rank, Cause.LINK, words, others / fastest[rank])
    blamed = {
        rank: (pace.slowest_peer, pace.slowest_bytes_per_s)
        for rank, pace in paces.items()
        if pace.slowest_peer is not None and pace.slowest_bytes_per_s < LINK_SHARE * pace.link_bytes_per_s
    }
    for peer, votes in Counter(peer for peer, _ in blamed.values()).most_common(1):
        if peer is not None and 2 * votes > len(fastest) - 1:
            rates = [rate for each, rate in blamed.values() if each == peer]
            words = f"its link receives {_rate(median(rates))} from each, and those of the others {_rate(others)}"
            return Straggler(peer, Cause.LINK, words, others / max(median(rates), 1.0))
    return None


def _advice(found: Straggler, num_workers: int) -> str:
    if found.cause is Cause.LINK:
        return "; look at its network"
    if num_workers > 2:
        return "; schedule(..., backups=1), or LEGATO_STRAGGLERS=evict in an elastic job, goes on without it"
    return ""


def _compute_s(pace: Pace) -> float:
    return pace.compute_s


def _input_s(pace: Pace) -> float:
    return pace.input_s


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.3g} MB/s"
