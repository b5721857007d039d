"""One step says what a whole run says."""

from dataclasses import replace

import pytest

from legato.core.policies import POLICIES, ByteScheduler
from legato.errors import InputError
from legato.sim import Architecture, Cluster, Group, simulate
from legato.sim.one_step import coarsened, one_step
from legato.sim.zoo import workload

CLUSTER = Cluster(workers=8, gbps=10, latency_s=20e-6, overhead_s=30e-6)


@pytest.mark.parametrize("architecture", [Architecture.PS, Architecture.ALLREDUCE, Architecture.RSAG])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "p3"])
def test_it_is_the_steady_state_of_a_run(policy: str, architecture: Architecture) -> None:
    cluster = replace(CLUSTER, architecture=architecture)
    for model in ("vgg16", "resnet50"):
        task = workload(model)
        plan = POLICIES[policy].plan(task.tensors)
        run = simulate(task, cluster, plan, warmup=1, steps=1)
        assert one_step(task, cluster, plan).iteration_s == pytest.approx(run.iteration_s, rel=1e-9)


def test_every_byte_is_in_one_span() -> None:
    task = workload("alexnet")
    step = one_step(task, CLUSTER, ByteScheduler().plan(task.tensors))
    started_s, finished_s = step.parts.started_s, step.parts.finished_s
    assert sum(part.length for part in finished_s) == task.num_bytes
    assert list(finished_s.values()) == sorted(finished_s.values())
    assert all(finished_s[part] > started for part, started in started_s.items())


def test_coarse_parts_are_nearly_as_good_and_cost_less() -> None:
    task = workload("resnet50")
    plan = ByteScheduler().plan(task.tensors, partition_bytes=20_000, credit_bytes=80_000)
    fine = one_step(task, CLUSTER, plan)
    coarse = one_step(task, *coarsened(task, CLUSTER, plan, 500))
    assert len(coarse.parts.started_s) <= 500 + len(task.tensors) < len(fine.parts.started_s) / 5
    assert coarse.iteration_s == pytest.approx(fine.iteration_s, rel=0.02)


def test_hosts_must_be_alike() -> None:
    task = workload("alexnet")
    cluster = replace(CLUSTER, groups=(Group(hosts=1, speed=0.5),))
    with pytest.raises(InputError, match="must be alike, but there are 2 groups"):
        one_step(task, cluster, ByteScheduler().plan(task.tensors))
