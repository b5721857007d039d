"""Tuners that go through a list: each candidate once, then the best."""

from collections.abc import Iterable

from legato.tuning.candidate import Candidate
from legato.tuning.search.trial_history import TrialHistory
from legato.tuning.statistics import Statistics


class Listed:
    """As many windows as the list is long; what was measured unasked need not be run again."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._left = list(candidates)[::-1]
        self._ledger = TrialHistory()

    def ask(self) -> Candidate:
        return self._left[-1] if self._left else self._ledger.best

    def tell(self, statistics: Statistics) -> None:
        self._ledger.write(statistics)
        while self._left and self._left[-1] in self._ledger:
            self._left.pop()

    @property
    def settled(self) -> bool:
        return not self._left
