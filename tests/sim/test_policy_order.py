"""The published order of the all-reduce policies comes out of the simulator (docs/simulator.md has the figures)."""

import pytest

from bench.simulator import SETTINGS, Setting, ratios
from legato.core.policies import ByteScheduler, PushFirst
from legato.sim import Cluster, simulate
from legato.sim.zoo import workload

BEST_FIRST = ("rsag", "priority, bucketed", "DeAR")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.model}-{setting.workers}")
def test_order_of_the_policies(setting: Setting) -> None:
    found = ratios(setting)
    values = [found[name] for name in BEST_FIRST]
    assert values == sorted(values)
    rest = (found["DDP's buckets"], found["priority, per tensor"])
    assert max(values) < min(rest)
    few_large_tensors = setting.model == "bert-base"
    assert (rest[0] > rest[1]) is few_large_tensors, "one operation per tensor pays only where tensors are large"


@pytest.mark.parametrize("model", ["vgg16", "resnet50", "bert-large", "gpt2"])
@pytest.mark.parametrize("communication", [0.3, 1.0, 3.0])
def test_contributions_may_go_first_where_nobody_is_behind(model: str, communication: float) -> None:
    cluster = Cluster(workers=4, gbps=1.0)
    task = workload(model)
    task = task.scaled(bytes_by=28e6 / task.num_bytes)
    task = task.scaled(time_by=task.num_bytes * cluster.seconds_per_byte / communication / task.compute_s)
    seconds = {
        policy.name: simulate(
            task, cluster, policy.plan(task.tensors, partition_bytes=128 << 10, credit_bytes=512 << 10)
        ).iteration_s
        for policy in (ByteScheduler(fusion_bytes=256 << 10), PushFirst(fusion_bytes=256 << 10))
    }
    assert seconds["pushfirst"] < 1.01 * seconds["bytescheduler"]
