"""With fine parts and no latency, priority scheduling over a parameter server reaches T*: the theorem, simulated."""

import pytest

from legato.core.policies import ByteScheduler
from legato.sim import Cluster, simulate
from legato.sim.zoo import ZOO, workload

LEAST_PART_BYTES = 64 * 1024
NUM_PARTS = 2048
"""So many make a model's parts fine."""


@pytest.mark.parametrize("model", ZOO)
def test_within_one_percent_of_the_bound(model: str) -> None:
    task = workload(model)
    part_bytes = max(LEAST_PART_BYTES, task.num_bytes // NUM_PARTS)
    plan = ByteScheduler().plan(task.tensors, partition_bytes=part_bytes, credit_bytes=4 * part_bytes)
    ratios = {
        (gbps, workers): simulate(task, Cluster(workers=workers, gbps=gbps), plan, warmup=1, steps=1).ratio
        for gbps in (1, 5, 10, 25, 100)
        for workers in (2, 8, 64)
    }
    assert max(ratios.values()) <= 1.01, ratios
