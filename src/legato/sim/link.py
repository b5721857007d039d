"""Links: first come, first served, at a rate that may change over time."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise


class Rate:
    """A piecewise constant factor on bandwidth."""

    def __init__(self, changes: Sequence[tuple[float, float]]) -> None:
        self._from_s = [start for start, _ in changes]
        self._factors = [factor for _, factor in changes]
        if self._from_s[0] > 0:
            self._from_s.insert(0, 0.0)
            self._factors.insert(0, 1.0)

    @property
    def constant(self) -> float | None:
        return self._factors[0] if len(self._factors) == 1 else None

    def finish(self, start_s: float, work_s: float) -> float:
        """When work that takes `work_s` at factor 1 is done if it begins at `start_s`."""
        place = bisect_right(self._from_s, start_s) - 1
        now = start_s
        while place + 1 < len(self._from_s):
            until = self._from_s[place + 1]
            done = (until - now) * self._factors[place]
            if done >= work_s:
                break
            work_s -= done
            now, place = until, place + 1
        return now + work_s / self._factors[place]

    def mean(self, start_s: float, stop_s: float) -> float:
        """The average factor between two moments."""
        if stop_s <= start_s:
            return self._factors[bisect_right(self._from_s, start_s) - 1]
        edges = [start_s, *(edge for edge in self._from_s if start_s < edge < stop_s), stop_s]
        total = sum(
            (right - left) * self._factors[bisect_right(self._from_s, left) - 1] for left, right in pairwise(edges)
        )
        return total / (stop_s - start_s)


class Link:
    """One direction of one host's link.

    It serves jobs in the order they come, so when a job ends is known when it begins, and no event is needed between.
    Priority acts before a part is started; how much can stand in front of an urgent part is what credit bounds.
    """

    def __init__(self, bytes_per_second: float, overhead_s: float, rate: Rate) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._overhead_s = overhead_s
        self._rate = rate
        self._constant = rate.constant
        self._free_s = 0.0
        self.num_bytes = 0.0

    def serve(self, now: float, num_bytes: float) -> float:
        """Take a job of that many bytes; the answer is when its last byte is through."""
        begin = self._free_s if self._free_s > now else now
        self.num_bytes += num_bytes
        work_s = num_bytes * self._seconds_per_byte
        if self._constant is not None:
            end = begin + self._overhead_s + work_s / self._constant
        else:
            end = self._rate.finish(begin + self._overhead_s, work_s)
        self._free_s = end
        return end
