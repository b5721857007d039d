"""Every tuner keeps the contract."""

import sys

import pytest

from legato.errors import InputError
from legato.sim.cluster import Cluster
from legato.testing.tuner_contract import SPACE, TunerContract
from legato.tuning.candidate import Space
from legato.tuning.search import bayes
from legato.tuning.search.bayes import Bayes
from legato.tuning.search.trying import Grid, RandomSearch
from legato.tuning.tuner import Tuner
from legato.tuning.twin.twin import Twin


class TestGrid(TunerContract):
    regret = 0.0

    def tuner(self, space: Space, shape: Cluster) -> Tuner:  # noqa: ARG002
        return Grid(space)

    def test_it_tries_everything_once(self) -> None:
        assert self.settle(self.make()) == list(SPACE)


class TestRandom(TunerContract):
    def tuner(self, space: Space, shape: Cluster) -> Tuner:  # noqa: ARG002
        return RandomSearch(space, budget=15)

    def test_it_tries_its_budget_and_nothing_twice(self) -> None:
        run = self.settle(self.make())
        assert len(set(run)) == len(run) == 15


class TestBayes(TunerContract):
    @pytest.fixture(autouse=True)
    def few_points(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bayes, "POINTS", 8)
        monkeypatch.setattr(bayes, "RANDOM_POINTS", 5)

    def tuner(self, space: Space, shape: Cluster) -> Tuner:  # noqa: ARG002
        return Bayes(space)

    def test_without_optuna_it_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(InputError, match=r"needs optuna: pip install 'legato\[tune\]'"):
            self.make()


class TestTwin(TunerContract):
    regret = 0.02

    def tuner(self, space: Space, shape: Cluster) -> Tuner:
        return Twin(space, shape)

    def test_three_windows_are_enough(self) -> None:
        assert len(self.settle(self.make())) <= 3
