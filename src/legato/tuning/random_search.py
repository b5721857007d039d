"""Random search: candidates drawn without replacement, then the best of them."""

import random

from legato.tuning.candidate import Candidate, Space
from legato.tuning.ledger import Ledger
from legato.tuning.statistics import Statistics


class RandomSearch:
    """The yardstick that a tuner with a model has to beat."""

    def __init__(self, space: Space, *, budget: int = 15, seed: int = 0) -> None:
        self._left = random.Random(seed).sample(list(space), min(budget, len(space)))
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
