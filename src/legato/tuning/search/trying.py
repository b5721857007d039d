"""Tuners that try candidates one by one and keep the best: all of a space, or some drawn at random."""

import random
from collections.abc import Iterable, Mapping

from legato.tuning.candidate import Candidate, Space
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


class Listed:
    """As many windows as the list is long; what was measured unasked need not be run again."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._left = list(candidates)[::-1]
        self._trials = TrialHistory()

    def ask(self) -> Candidate:
        return self._left[-1] if self._left else self._trials.best

    def tell(self, statistics: Statistics) -> None:
        self._trials.write(statistics)
        while self._left and self._left[-1] in self._trials:
            self._left.pop()

    @property
    def settled(self) -> bool:
        return not self._left


class Grid(Listed):
    """All of a space: certain and slow, as many windows as it has candidates."""


class RandomSearch(Listed):
    """Drawn without replacement: the yardstick that a tuner with a model has to beat."""

    def __init__(self, space: Space, *, budget: int = 15, seed: int = 0) -> None:
        super().__init__(random.Random(seed).sample(list(space), min(budget, len(space))))
