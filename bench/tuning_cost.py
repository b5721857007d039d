"""What a tuner's decision costs beside training: `python -m bench.tuning_cost`.

A search of the twin, from statistics to a choice, and the meta-network's predictions for 200 candidates, each in one
thread: the best, the median and the worst of the repetitions.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from statistics import median

import torch

from legato.core import Workload
from legato.sim.cluster import Cluster
from legato.sim.zoo import workload
from legato.testing.tuner_contract import measured
from legato.tuning.autobyte import shipped_network
from legato.tuning.candidate import Space
from legato.tuning.features import candidate_features, job_features
from legato.tuning.twin import Twin

CLUSTER = Cluster(workers=8, gbps=10, latency_s=50e-6, overhead_s=50e-6)
MODELS = ("alexnet", "resnet50", "densenet121")
PREDICTIONS = 200
REPETITIONS = 15


def timed(what: str, call: Callable[[], object]) -> None:
    call()
    times_ms = []
    for _ in range(REPETITIONS):
        start_s = time.perf_counter()
        call()
        times_ms.append(1e3 * (time.perf_counter() - start_s))
    print(f"{what:48} {min(times_ms):6.1f} {median(times_ms):6.1f} {max(times_ms):6.1f} ms")


def search(model: Workload) -> None:
    space = Space()
    statistics = measured(space.start, CLUSTER, model)
    shape = replace(CLUSTER, gbps=1.0, latency_s=0.0, overhead_s=0.0)
    timed(f"twin, {model.name}, {len(space)} candidates", lambda: Twin(space, shape).tell(statistics))


def predict(model: Workload) -> None:
    network = shipped_network()
    candidates = list(islice(cycle(Space()), PREDICTIONS))

    def call() -> None:
        network.predict(job_features(model, CLUSTER, [1e9]), candidate_features(model, candidates))

    timed(f"meta-network, {model.name}, {PREDICTIONS} candidates", call)


def main() -> None:
    torch.set_num_threads(1)
    for name in MODELS:
        search(workload(name))
        predict(workload(name))


if __name__ == "__main__":
    main()
