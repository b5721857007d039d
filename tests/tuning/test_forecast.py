"""Forecasts: what the twin says of a recording is what the simulator says of the changed run."""

from dataclasses import replace
from pathlib import Path

import pytest

from legato.core import Workload
from legato.core.policies import by_name
from legato.observe import TimelineConfig
from legato.observe.notes import HAND_OVER, Stretch
from legato.observe.report import analyse, read
from legato.observe.simulated import SimulatedWorker, write
from legato.sim import Architecture, Cluster, simulate
from legato.sim.zoo import workload
from legato.tuning.twin.forecast import Forecast, forecast

ALEXNET = workload("alexnet")
RING = Cluster(workers=4, gbps=10, architecture=Architecture.ALLREDUCE, operations_in_flight=2)


def recorded(path: Path, cluster: Cluster, task: Workload = ALEXNET) -> Forecast:
    plan = by_name("bytescheduler").plan(task.tensors)
    worker = SimulatedWorker(TimelineConfig(path=path), task, plan)
    simulate(task, cluster, plan, observers=[worker])
    write(path, [(f"worker 0, and {cluster.workers - 1} alike", worker)])
    recording = read([path])
    return forecast(recording, analyse(recording))


def test_the_bound_and_the_links_are_those_of_the_run(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run.json", RING)
    bound, fewer, faster = found.outlooks
    assert found.gbps == pytest.approx(RING.gbps, rel=0.05)
    assert bound.step_s == pytest.approx(ALEXNET.bound_s(RING.seconds_per_byte), rel=0.05)
    assert bound.error is None
    assert fewer.change.startswith("half the bytes")
    doubled = replace(RING, gbps=2 * RING.gbps)
    assert faster.step_s == pytest.approx(ALEXNET.bound_s(doubled.seconds_per_byte), rel=0.2)
    for each in (fewer, faster):
        assert each.error is not None
        assert each.step_s < bound.step_s


def test_where_nothing_waits_nothing_helps(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run.json", replace(RING, gbps=10_000))
    assert found.outlooks == ()
    assert "computation hides the communication" in found.remarks[0]


def test_a_link_carries_nothing_while_gradients_are_handed_over(tmp_path: Path) -> None:
    rate = recorded(tmp_path / "run.json", RING).gbps
    recording = read([tmp_path / "run.json"])
    for rank in recording.ranks:
        ends_ns = {stint.step: stint.end_ns for stint in rank.stints if stint.work == "backward"}
        rank.stints += [Stretch("wait", HAND_OVER, end_ns, end_ns + 10**8, step) for step, end_ns in ends_ns.items()]
        rank.stints.sort(key=lambda stint: stint.begin_ns)
    assert forecast(recording, analyse(recording)).gbps == rate


def test_it_says_what_it_cannot_know(tmp_path: Path) -> None:
    plan = by_name("bytescheduler").plan(ALEXNET.tensors)
    worker = SimulatedWorker(TimelineConfig(path=tmp_path / "run.json", last_step=0), ALEXNET, plan)
    simulate(ALEXNET, RING, plan, observers=[worker])
    write(tmp_path / "run.json", [("worker 0, and 3 alike", worker)])
    recording = read([tmp_path / "run.json"])
    assert "two steps in a row" in forecast(recording, analyse(recording)).remarks[0]
    worker = SimulatedWorker(TimelineConfig(path=tmp_path / "run.json"), ALEXNET, plan)
    simulate(ALEXNET, RING, plan, observers=[worker])
    write(tmp_path / "run.json", [("worker 0", worker)])
    recording = read([tmp_path / "run.json"])
    assert "one worker has nobody to talk to" in forecast(recording, analyse(recording)).remarks[0]
