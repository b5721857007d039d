"""The history of trials: what has been tried, and what was best."""

from collections.abc import Mapping

from legato.tuning.candidate import Candidate
from legato.tuning.statistics import Statistics


class TrialHistory:
    """Time of a step by candidate; the last measurement counts, because networks change."""

    def __init__(self) -> None:
        self._seconds: dict[Candidate, float] = {}

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate in self._seconds

    def __len__(self) -> int:
        return len(self._seconds)

    @property
    def seconds(self) -> Mapping[Candidate, float]:
        return self._seconds

    @property
    def best(self) -> Candidate:
        """The fastest so far; of equals the first."""
        return min(self._seconds, key=self._seconds.__getitem__)

    def write(self, statistics: Statistics) -> None:
        self._seconds[statistics.candidate] = statistics.iteration_s
