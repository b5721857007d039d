"""Random search: candidates drawn without replacement, then the best of them."""

import random

from legato.tuning.candidate import Space
from legato.tuning.search.listed import Listed


class RandomSearch(Listed):
    """The yardstick that a tuner with a model has to beat."""

    def __init__(self, space: Space, *, budget: int = 15, seed: int = 0) -> None:
        super().__init__(random.Random(seed).sample(list(space), min(budget, len(space))))
