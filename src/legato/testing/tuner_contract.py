"""What every tuner must do. A test file subclasses `TunerContract` and says how its tuner comes to be:

class TestGrid(TunerContract):
    def tuner(self, space: Space, shape: Cluster) -> Tuner:
        return Grid(space)
"""

from dataclasses import replace

from legato.core import Layer, Workload
from legato.sim.cluster import Cluster
from legato.tuning.candidate import BASELINE, Candidate, Space
from legato.tuning.statistics import Statistics
from legato.tuning.tuner import Tuner
from legato.tuning.twin.search import simulated_window

SPACE = Space(partition_bytes=(100_000, 1_000_000, 4_000_000, 16_000_000), credit_parts=(1, 4, 16))
BOTH = Space(
    policies=("bytescheduler",),
    partition_bytes=(100_000, 1_000_000, 4_000_000),
    credit_parts=(1, 4),
    transports=("c10d", "native"),
)
"""A space in which the transport is to be chosen, too."""
CLUSTER = Cluster(workers=4, gbps=10, latency_s=50e-6, overhead_s=50e-6)
WORKLOAD = Workload(
    "contract", tuple(Layer(f"layer{place}", 8_000_000 if place % 2 else 40_000, 2e-3, 4e-3) for place in range(12))
)


def measured(candidate: Candidate, cluster: Cluster = CLUSTER, workload: Workload = WORKLOAD) -> Statistics:
    """What a job would measure under a candidate, by the simulator."""
    return simulated_window(workload, cluster, candidate)


class TunerContract:
    """The suite."""

    regret = 0.15
    """How far from the best candidate a tuner may settle."""

    def tuner(self, space: Space, shape: Cluster) -> Tuner:
        """A new tuner, made alike each time. Of the shape it may know hosts and architecture, no speed."""
        raise NotImplementedError

    def make(self) -> Tuner:
        return self.tuner(SPACE, replace(CLUSTER, gbps=1.0, latency_s=0.0, overhead_s=0.0))

    def make_for_both(self) -> Tuner:
        return self.tuner(BOTH, replace(CLUSTER, gbps=1.0, latency_s=0.0, overhead_s=0.0))

    def settle(self, tuner: Tuner, cluster: Cluster = CLUSTER) -> list[Candidate]:
        """Tell what is asked for until the tuner has settled; the answer is what was run."""
        run: list[Candidate] = []
        while not tuner.settled:
            assert len(run) <= len(SPACE), "it tries more than there is"
            run.append(tuner.ask())
            tuner.tell(measured(run[-1], cluster))
        return run

    def test_it_asks_for_candidates_of_the_space(self) -> None:
        tuner = self.make()
        assert {*self.settle(tuner), tuner.ask()} <= set(SPACE)

    def test_asking_twice_gives_the_same(self) -> None:
        tuner = self.make()
        assert tuner.ask() == tuner.ask()
        tuner.tell(measured(tuner.ask()))
        assert tuner.ask() == tuner.ask()

    def test_it_settles_on_a_good_candidate_and_stays(self) -> None:
        tuner = self.make()
        self.settle(tuner)
        best_s = min(measured(candidate).iteration_s for candidate in SPACE)
        assert measured(tuner.ask()).iteration_s <= (1 + self.regret) * best_s
        chosen = tuner.ask()
        for _ in range(3):
            tuner.tell(measured(chosen))
            assert tuner.settled
            assert tuner.ask() == chosen

    def test_it_chooses_the_transport_too(self) -> None:
        tuner = self.make_for_both()
        self.settle(tuner)
        best_s = min(measured(candidate).iteration_s for candidate in BOTH)
        assert tuner.ask().transport == "native", "the other pays a start for every operation"
        assert measured(tuner.ask()).iteration_s <= (1 + self.regret) * best_s

    def test_the_same_story_leads_to_the_same_choice(self) -> None:
        first, second = self.make(), self.make()
        assert self.settle(first) == self.settle(second)
        assert first.ask() == second.ask()

    def test_it_may_be_told_of_what_it_did_not_ask_for(self) -> None:
        tuner = self.make()
        tuner.tell(measured(BASELINE))
        tuner.tell(measured(SPACE.at(0, 0, 0)))
        self.settle(tuner)
        assert tuner.ask() in {*SPACE, BASELINE}

    def test_statistics_without_rates_do_no_harm(self) -> None:
        tuner = self.make()
        tuner.tell(replace(measured(tuner.ask()), rates_bytes_per_s=()))
        assert tuner.ask() in set(SPACE)
