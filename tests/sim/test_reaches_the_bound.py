"""With fine parts and no latency, priority scheduling over a parameter server reaches T*: the theorem, simulated."""

import pytest

from legato.core.policies import ByteScheduler
from legato.sim import Cluster, simulate
from legato.sim.zoo import ZOO, workload

PART = 64 * 1024


@pytest.mark.parametrize("model", ZOO)
def test_within_one_percent_of_the_bound(model: str) -> None:
    task = workload(model)
    plan = ByteScheduler().plan(task.tensors, partition_bytes=PART, credit_bytes=4 * PART)
    ratios = {
        (gbps, workers): simulate(task, Cluster(workers=workers, gbps=gbps), plan, warmup=1, steps=1).ratio
        for gbps in (1, 5, 10, 25, 100)
        for workers in (2, 8, 64)
    }
    assert max(ratios.values()) <= 1.01, ratios
