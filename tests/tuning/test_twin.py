"""The twin: fitted to what was measured, it predicts what was not."""

import random
from dataclasses import replace
from statistics import median

import pytest

from legato.core import Workload
from legato.core.policies import by_name
from legato.errors import InputError
from legato.sim import Architecture, Cluster
from legato.sim.zoo import workload
from legato.testing.tuner_contract import CLUSTER, SPACE, WORKLOAD, measured
from legato.tuning.autobyte.dataset import scenario
from legato.tuning.candidate import BASELINE, Candidate, Space
from legato.tuning.live.guard import Trigger
from legato.tuning.twin.estimate import Estimator
from legato.tuning.twin.search import search, simulated_s, simulated_window
from legato.tuning.twin.transports import KERNEL_BYTES, measured_cluster, seen
from legato.tuning.twin.twin import Twin, advice

UNKNOWN = replace(CLUSTER, gbps=1.0, latency_s=0.0, overhead_s=0.0)


@pytest.mark.parametrize("transport", [None, "native", "c10d"])
@pytest.mark.parametrize("gbps", [0.5, 2.0])
def test_bandwidth_is_found_from_rates(gbps: float, transport: str | None) -> None:
    """Where communication takes longer than computation, so that links are busy from the first gradient on."""
    task, cluster = workload("resnet50").scaled(time_by=0.2), replace(CLUSTER, gbps=gbps)
    window = simulated_window(task, cluster, Candidate("bytescheduler", 1_000_000, 4_000_000, transport))
    found = measured_cluster(UNKNOWN, window)
    assert found is not None
    assert found.gbps == pytest.approx(gbps, rel=0.1)


def test_one_slow_step_does_not_make_links_slow() -> None:
    window = measured(SPACE.start)
    slow = replace(window, rates_bytes_per_s=(1.0, *window.rates_bytes_per_s[1:]))
    assert measured_cluster(UNKNOWN, slow) == measured_cluster(UNKNOWN, window)


def test_where_nothing_is_waited_for_nothing_is_known_of_the_links() -> None:
    last = WORKLOAD.layers[-1]  # all that travels is needed last
    layers = tuple(replace(each, num_bytes=0) for each in WORKLOAD.layers[:-1])
    hidden = measured(SPACE.start, workload=Workload("hidden", (*layers, last)))
    assert hidden.rates_bytes_per_s == ()
    assert measured_cluster(UNKNOWN, hidden) is None


def test_a_search_finds_the_best_of_the_space() -> None:
    space = Space(partition_bytes=tuple(1 << power for power in range(17, 25)), credit_parts=(1, 2, 4, 16))
    regrets = []
    for seed in range(8):
        task, cluster = scenario(random.Random(seed))
        best_s = min(simulated_s(task, cluster, candidate, 500) for candidate in (*space, BASELINE))
        regrets.append(simulated_s(task, cluster, next(iter(search(task, cluster, space))), 500) / best_s - 1)
    assert median(regrets) < 0.005
    assert max(regrets) < 0.03


def test_the_estimate_is_near_the_simulation() -> None:
    candidates = [each for each in SPACE if each.credit_bytes != each.partition_bytes]
    estimates = Estimator(WORKLOAD, CLUSTER).iteration_s(candidates)
    for candidate, estimate in zip(candidates, estimates, strict=True):
        assert estimate == pytest.approx(simulated_s(WORKLOAD, CLUSTER, candidate), rel=0.15)


def told(cluster: Cluster = CLUSTER) -> Twin:
    twin = Twin(SPACE, UNKNOWN)
    for _ in range(3):
        twin.tell(measured(twin.ask(), cluster))
    return twin


def test_its_error_shrinks_as_predictions_come_true() -> None:
    twin = Twin(SPACE, UNKNOWN)
    before = twin.error
    for _ in range(5):
        twin.tell(measured(twin.ask()))
    assert twin.error < before / 2
    best = twin.predictions()[0]
    assert best.iteration_s == pytest.approx(measured(best.candidate).iteration_s, rel=0.05)
    assert "ms ±" in str(best)


def test_it_follows_a_change_of_bandwidth() -> None:
    slow = replace(CLUSTER, gbps=1.0)
    twin = told()
    for _ in range(3):
        twin.tell(measured(twin.ask(), slow))
    best_s = min(measured(candidate, slow).iteration_s for candidate in SPACE)
    assert measured(twin.ask(), slow).iteration_s <= 1.02 * best_s


def test_noise_does_not_keep_it_looking() -> None:
    """A percent more is soon promised where a window is off by three; with a trigger of one it took up to 11."""
    space = Space(policies=("bytescheduler",), credit_parts=(16,))
    for seed in range(30):
        rng = random.Random(seed)
        twin = Twin(space, UNKNOWN, start=space.at(0, 5, 0), trigger=Trigger())
        num_windows = 0
        while not twin.settled:
            window = measured(twin.ask())
            twin.tell(replace(window, iteration_s=window.iteration_s * rng.lognormvariate(0, 0.03)))
            num_windows += 1
        assert num_windows <= 6


def test_the_baseline_is_known_as_it_would_be_without_losses() -> None:
    twin = Twin(SPACE, UNKNOWN, start=SPACE.at(0, 3, 0))
    assert twin.baseline_s is None
    window = measured(twin.ask())
    twin.tell(replace(window, iteration_s=2 * window.iteration_s))
    cut = replace(BASELINE, partition_bytes=window.candidate.partition_bytes)
    assert twin.baseline_s == pytest.approx(measured(cut).iteration_s, rel=0.1), "whatever the plan that ran loses"


def test_what_if() -> None:
    twin = told()
    faster = replace(CLUSTER, gbps=40.0)
    assert twin.what_if(gbps=40.0).iteration_s == pytest.approx(
        min(measured(candidate, faster).iteration_s for candidate in SPACE), rel=0.1
    )
    present_s = twin.predictions()[0].iteration_s
    assert twin.what_if(bytes_by=0.5).iteration_s < present_s
    assert twin.what_if(servers=4).iteration_s < present_s


def test_what_if_needs_to_know_something() -> None:
    with pytest.raises(InputError, match="no statistics yet"):
        Twin(SPACE, UNKNOWN).what_if(gbps=1.0)
    ring = replace(CLUSTER, architecture=Architecture.ALLREDUCE)
    twin = Twin(SPACE, ring)
    twin.tell(measured(twin.ask(), ring))
    with pytest.raises(InputError, match="has no servers"):
        twin.what_if(servers=1)


def test_advice_has_numbers_and_the_best_first() -> None:
    slow = replace(CLUSTER, gbps=5.0)
    lines = advice(told(slow), slow)
    assert any(line.startswith("half the bytes (fp16 gradients): ") for line in lines)
    assert all("ms ±" in line and "% more samples a second" in line for line in lines)


def test_candidates_become_plans() -> None:
    tensors = WORKLOAD.tensors
    plan = Candidate("rsag", 1_000_000, 2_000_000).plan(tensors)
    assert plan.policy == "rsag(bucket_bytes=1000000)"
    assert (plan.largest_partition_bytes, plan.credit_bytes) == (1_000_000, 2_000_000)
    assert BASELINE.plan(tensors) == by_name("wfbp").plan(tensors)
    for wrong in (("lifo", None, None), ("rsag", 0, None), ("rsag", 1, -1), ("rsag", 1, 1, "pigeons")):
        with pytest.raises(InputError):
            Candidate(*wrong)


def test_over_c10d_small_tensors_travel_together() -> None:
    tensors = WORKLOAD.tensors
    small = {index for index, tensor in enumerate(tensors) if tensor.num_bytes < 100_000}
    plan = Candidate("bytescheduler", 1_000_000, 2_000_000, "c10d").plan(tensors)
    assert small
    assert any(small == set(bucket) for bucket in plan.buckets)
    assert len(Candidate("bytescheduler", 1_000_000, 2_000_000, "native").plan(tensors).buckets) == len(tensors)


@pytest.mark.parametrize("wrong", [{"policies": ()}, {"partition_bytes": (2, 1)}, {"credit_parts": (0, 1)}])
def test_a_space_is_checked(wrong: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match="space: "):
        Space(**wrong)  # type: ignore[arg-type]


def test_where_urgent_parts_overtake_a_large_window_counts_as_one_part() -> None:
    engine = replace(CLUSTER, overtaking=True)
    large = Candidate("bytescheduler", 1_000_000, 16_000_000)
    assert seen(large, CLUSTER) == large
    assert seen(large, engine) == Candidate("bytescheduler", KERNEL_BYTES, KERNEL_BYTES)
    small = Candidate("bytescheduler", 65536, 16 * 65536)
    assert seen(small, engine) == replace(small, credit_bytes=65536)
    assert seen(BASELINE, engine) == BASELINE
    assert simulated_s(WORKLOAD, engine, large) < simulated_s(WORKLOAD, CLUSTER, large)
