"""Grid search: every candidate once, then the best."""

from legato.tuning.candidate import Candidate, Space
from legato.tuning.ledger import Ledger
from legato.tuning.statistics import Statistics


class Grid:
    """Certain and slow: as many windows as the space has candidates."""

    def __init__(self, space: Space) -> None:
        self._left = list(space)[::-1]
        self._ledger = Ledger()

    def ask(self) -> Candidate:
        return self._left[-1] if self._left else self._ledger.best

    def tell(self, statistics: Statistics) -> None:
        self._ledger.write(statistics)
        while self._left and self._left[-1] in self._ledger:
            self._left.pop()

    @property
    def settled(self) -> bool:
        return not self._left
