"""A quick estimate of many candidates at once, in closed form, to know which are worth simulating.

Preemptive priority by forward order is a queue in which later arrivals go first, so all that counts at the end of
backward is how much is left of the most urgent buckets 0..j (the argument of T*, with the prices of real parts):

    left(j) = max_{i≤j} [ Σ_{k≤i} c_k - (end of backward - ready_i) ]⁺        c_k: its parts at the pace of the window

To it comes what credit had let go before (at most the window, at most what the others have left), and the way of the
last part, which nothing follows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np
import numpy.typing as npt

from legato.core import Workload
from legato.core.part import Part, Stage
from legato.sim.cluster import Cluster
from legato.sim.network import Arrival, Progress, make_network
from legato.tuning.candidate import Candidate

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


Array = npt.NDArray[np.float64]


class Estimator:
    """Estimates candidates that go by priority (`bytescheduler`, `rsag`) for one workload and cluster."""

    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        self._tensors = workload.tensors
        self._prices = link_cost_of(cluster)
        backward = np.array([layer.backward_s for layer in workload.layers])
        forward = np.array([layer.forward_s for layer in workload.layers])
        places = [tensor.priority for tensor in self._tensors]
        self._backward_s = float(backward.sum())
        self._compute_s = float(backward.sum() + forward.sum())
        # How long before the end of backward each tensor is ready, and how much forward is left from its layer on.
        self._early_s = (np.cumsum(backward) - backward)[places]
        self._forward_left_s = np.cumsum(forward[::-1])[::-1][places]

    def iteration_s(self, candidates: Sequence[Candidate]) -> Array:
        """The time of a step under each candidate; candidates of one policy and partition are cheap together."""
        result = np.empty(len(candidates))
        groups: dict[tuple[str, int | None], list[int]] = {}
        for place, candidate in enumerate(candidates):
            groups.setdefault((candidate.policy, candidate.partition_bytes), []).append(place)
        for places in groups.values():
            result[places] = self._group([candidates[place] for place in places])
        return result

    def _group(self, candidates: Sequence[Candidate]) -> Array:
        plan = candidates[0].plan(self._tensors)
        stages = len(plan.stages)
        partition = float(plan.largest_partition_bytes or 1 << 62)
        sizes_list, early_list, left_list = [], [], []
        for bucket in sorted(plan.buckets, key=min):
            sizes_list.append(sum(self._tensors[index].num_bytes for index in bucket))
            early_list.append(self._early_s[min(bucket)])
            left_list.append(self._forward_left_s[min(bucket)])
        sizes, early, forward_left = np.array(sizes_list), np.array(early_list), np.array(left_list)
        parts = np.ceil(sizes / partition)
        window = np.array([[max((each.credit_bytes or 1 << 62) // partition, 1)] for each in candidates]) / stages
        alone, spacing = self._prices.alone, self._prices.spacing
        follow = parts * spacing.start_s + sizes * spacing.seconds_per_byte
        by_itself = parts * alone.start_s + sizes * alone.seconds_per_byte
        cost = np.maximum(follow, by_itself / np.minimum(np.maximum(window, 1.0), parts.sum()))
        left = np.maximum.accumulate(np.cumsum(cost, axis=1) - early, axis=1)
        left = np.maximum(left, 0.0)
        largest = np.minimum(sizes, partition)
        largest_s = spacing.start_s + largest * spacing.seconds_per_byte
        ahead = np.minimum((window * stages - 0.5) * largest_s.max(), left[:, -1:] - left)
        tail = np.maximum(alone.start_s + largest * alone.seconds_per_byte - largest_s, 0.0)
        arrived = np.where(left > 0, left + np.maximum(ahead, 0.0) + tail, 0.0)
        longest: Array = (self._backward_s + arrived + forward_left).max(axis=1)
        return np.maximum(longest, self._compute_s)
