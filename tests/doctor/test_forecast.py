"""Forecasts are the simulator's, of the plans that DDP and legato would use."""

from dataclasses import replace

import pytest

from legato.core import Layer, Workload
from legato.core.policies import WaitFree
from legato.doctor.forecast import (
    MODEL_ERROR,
    MOST_BYTES,
    MOST_PLACES,
    engine_of,
    foresee,
    own_plan,
    ring_of,
)
from legato.doctor.links import given_links
from legato.settings import read_settings
from legato.sim import Cluster, Ownership, simulate
from legato.sim.zoo import workload

SETTINGS = read_settings({})
MODEL = workload("resnet50").scaled(bytes_by=0.1)


def steps_s(task: Workload, num_workers: int, gbps: float, **settings: str) -> dict[str, float]:
    found = foresee(task, given_links(num_workers, gbps, 0.0), read_settings(settings))
    return {each.change: each.step_s for each in found.outlooks}


def test_it_says_what_the_simulator_says() -> None:
    cluster = Cluster(workers=4, gbps=1.0)
    served = replace(cluster, servers=2, deployment=Ownership.MIXED)
    found = steps_s(MODEL, 4, 1.0)
    assert list(found) == ["DDP", "legato", "legato, 2 servers", "legato, 4 servers", "legato, fp16", "T*"]
    assert found["DDP"] == pytest.approx(simulate(MODEL, ring_of(cluster), WaitFree().plan(MODEL.tensors)).iteration_s)
    for name, seen in (("legato", cluster), ("legato, 2 servers", served)):
        step_s = simulate(MODEL, engine_of(seen), own_plan(MODEL, seen, SETTINGS)).iteration_s
        assert found[name] == pytest.approx(step_s, rel=0.01)
    assert found["T*"] == MODEL.bound_s(cluster.seconds_per_byte)
    assert found["T*"] <= found["legato"] < found["DDP"]
    assert found["legato, fp16"] < found["legato"]


def test_a_step_that_can_be_worked_out_by_hand() -> None:
    """One layer: nothing overlaps. 12.5 MB over 1 Gbit/s between two hosts are 100 ms, by either."""
    task = Workload("one", (Layer("only", 12_500_000, 0.05, 0.1),))
    found = steps_s(task, 2, 1.0)
    assert found["T*"] == pytest.approx(0.25)
    assert found["DDP"] == pytest.approx(0.25, rel=0.03)
    assert found["legato"] == pytest.approx(0.25, rel=0.03)
    assert found["legato, fp16"] == pytest.approx(0.2, rel=0.03)


def test_between_two_hosts_no_servers_are_tried_unless_asked_for() -> None:
    assert list(steps_s(MODEL, 2, 1.0)) == ["DDP", "legato", "legato, fp16", "T*"]
    asked = foresee(MODEL, given_links(2, 1.0, 0.0), SETTINGS, (1,))
    assert "legato, 1 server" in [each.change for each in asked.outlooks]


def test_on_a_fast_link_it_recommends_off() -> None:
    found = foresee(MODEL, given_links(2, 1000.0, 0.0), SETTINGS)
    assert found.advice.use == "off"
    assert "less than 5% is not worth the trouble" in found.advice.why


def test_where_something_is_to_be_gained_it_recommends_that() -> None:
    """Communication as long as computation: legato; ten times as long: fp16, too, since bytes are all that counts."""
    gbps = 2 * MODEL.num_bytes * 8e-9 / MODEL.compute_s / 2
    found = foresee(MODEL, given_links(2, gbps, 0.0), SETTINGS)
    assert found.advice.use == "legato"
    assert found.advice.why.startswith("it saves ")
    assert foresee(MODEL, given_links(2, gbps / 10, 0.0), SETTINGS).advice.use == "legato, fp16"


def test_the_uncertainty_grows_with_that_of_the_links() -> None:
    sure = given_links(2, 0.2, 0.0)
    unsure = replace(sure, low_gbps=0.1, high_gbps=0.25)
    for certain, doubtful in zip(
        foresee(MODEL, sure, SETTINGS).outlooks, foresee(MODEL, unsure, SETTINGS).outlooks, strict=True
    ):
        assert doubtful.step_s == certain.step_s
        if certain.error is None:
            assert certain.change == "T*"
        else:
            assert certain.error == pytest.approx(MODEL_ERROR)
            assert doubtful.error is not None
            assert doubtful.error > 0.3


def test_an_engine_slower_than_tcp_makes_legato_uncertain() -> None:
    links = replace(given_links(2, 0.5, 0.0), engine_gbps=0.25)
    found = {each.change: each for each in foresee(MODEL, links, SETTINGS).outlooks}
    slow_s = steps_s(MODEL, 2, 0.25)["legato"]
    assert found["legato"].step_s * (1 + (found["legato"].error or 0.0)) >= slow_s
    assert found["DDP"].error == pytest.approx(MODEL_ERROR)


def test_it_is_of_legato_as_it_is_set() -> None:
    assert steps_s(MODEL, 2, 1.0, LEGATO_POLICY="fifo")["legato"] > steps_s(MODEL, 2, 1.0)["legato"]


def test_large_questions_are_made_smaller() -> None:
    """What is simulated has fewer bytes and hosts, and is still no faster than T* and not much slower."""
    task = workload("vgg16")
    assert task.num_bytes > MOST_BYTES
    links = given_links(3 * MOST_PLACES, 10.0, 0.0)
    found = {each.change: each.step_s for each in foresee(task, links, SETTINGS, ()).outlooks}
    assert 0.999 * found["T*"] < found["legato"] < 1.1 * found["T*"]
