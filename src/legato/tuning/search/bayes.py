"""Bayesian optimisation: a Gaussian process over the space, and the point of largest expected improvement next.

ByteScheduler tunes so (SOSP'19): 15 points, the first 10 at random, each the mean of about 100 steps; then it stays.
"""

import warnings
from typing import TYPE_CHECKING, Any

from legato.errors import InputError
from legato.tuning.candidate import Candidate, Space
from legato.tuning.search.trying import TrialHistory
from legato.tuning.statistics import Statistics

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial


POINTS = 15
"""Candidates that are measured before the best one stays."""
RANDOM_POINTS = 10
"""Of these, how many are drawn before the model speaks."""


class Bayes:
    """optuna's Gaussian process; needs the extra `tune`."""

    def __init__(self, space: Space, *, seed: int = 0) -> None:
        self._space = space
        self._trials = TrialHistory()
        self._study = _study(seed)
        self._trial: Trial | None = None
        self._asked: Candidate | None = None
        self._told = 0

    def ask(self) -> Candidate:
        if self.settled:
            return self._trials.best
        if self._asked is None:
            self._trial = self._study.ask()
            self._asked = self._space.at(
                self._place("policy", len(self._space.policies)),
                self._place("partition", len(self._space.partition_bytes)),
                self._place("credit", len(self._space.credit_parts)),
                self._place("transport", len(self._space.transports)),
            )
        return self._asked

    def _place(self, name: str, count: int) -> int:
        assert self._trial is not None
        return self._trial.suggest_int(name, 0, count - 1)

    def tell(self, statistics: Statistics) -> None:
        self._trials.write(statistics)
        if self._trial is not None and statistics.candidate == self._asked:
            self._study.tell(self._trial, statistics.iteration_s)
            self._trial = self._asked = None
            self._told += 1

    @property
    def settled(self) -> bool:
        return self._told >= POINTS


def _study(seed: int) -> "Study":
    try:
        import optuna
        import scipy  # type: ignore[import-untyped]  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError(f"the tuner 'bayes' needs {error.name}: pip install 'legato[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler: Any
    with warnings.catch_warnings():
        # The sampler is announced as experimental in some versions.
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=RANDOM_POINTS)
    return optuna.create_study(direction="minimize", sampler=sampler)
