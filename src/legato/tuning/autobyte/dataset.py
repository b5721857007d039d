"""Scenarios, random workloads on random networks, and samples of them for the meta-network, simulated on all cores.

As in AutoByte's collection, bandwidth is drawn anew every 20 iterations, a window of 10 measured rates ends somewhere
in between, and the speed to be predicted is that at the newest bandwidth.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, log
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from legato.core import Layer, Workload
from legato.sim.cluster import Architecture, Cluster
from legato.sim.zoo import ZOO, workload
from legato.tuning.autobyte.features import SERIES, Array, candidate_features, job_features
from legato.tuning.candidate import Candidate
from legato.tuning.twin.search import simulated_s

GBPS = (0.5, 25.0)
"""The bandwidths of AutoByte's experiments."""


class Scenario(NamedTuple):
    workload: Workload
    cluster: Cluster


def scenario(rng: random.Random) -> Scenario:
    """A model, from the zoo or made up, on a network where communication is 0.2 to 5 times computation."""
    model = _from_zoo(rng) if rng.random() < 0.4 else _made_up(rng)
    cluster = Cluster(
        workers=rng.choice((2, 3, 4, 6, 8, 12, 16, 32)),
        gbps=_log_uniform(rng, *GBPS),
        architecture=rng.choice((Architecture.PS, Architecture.PS, Architecture.ALLREDUCE)),
        latency_s=_log_uniform(rng, 5e-6, 200e-6),
        overhead_s=_log_uniform(rng, 5e-6, 200e-6),
    )
    communication_s = model.num_bytes * cluster.seconds_per_byte
    wanted = communication_s / _log_uniform(rng, 0.2, 5.0)
    return Scenario(model.scaled(time_by=wanted / model.compute_s), cluster)


def _from_zoo(rng: random.Random) -> Workload:
    """A model of the zoo with its times shaken, so that no two are alike."""
    model = workload(rng.choice(list(ZOO)))
    layers = tuple(
        Layer(layer.name, layer.num_bytes, layer.forward_s * _shake(rng), layer.backward_s * _shake(rng))
        for layer in model.layers
    )
    return Workload(model.name, layers)


def _made_up(rng: random.Random) -> Workload:
    """Layers whose bytes and times follow rough trends over depth: growing, shrinking, level, with a large end."""
    count = round(_log_uniform(rng, 8, 160))
    total_bytes = _log_uniform(rng, 10e6, 800e6)
    bytes_trend, time_trend = rng.uniform(-3, 3), rng.uniform(-3, 3)
    sizes = [exp(bytes_trend * place / count) * _shake(rng, 1.0) for place in range(count)]
    if rng.random() < 0.5:
        # An embedding or a classifier that holds much of the model.
        sizes[rng.choice((0, -1))] = sum(sizes) * rng.uniform(0.2, 2.0)
    times = [exp(time_trend * place / count) * _shake(rng, 0.7) for place in range(count)]
    scale, backward = total_bytes / sum(sizes), rng.uniform(1.5, 2.5)
    layers = tuple(
        Layer(f"layer{place}", max(round(size * scale / 4), 1) * 4, time, time * backward * _shake(rng))
        for place, (size, time) in enumerate(zip(sizes, times, strict=True))
    )
    return Workload("made up", layers)


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return low * exp(rng.random() * log(high / low))


def _shake(rng: random.Random, sigma: float = 0.2) -> float:
    return rng.lognormvariate(0.0, sigma)


CANDIDATES_PER_JOB = 16
JOBS_PER_TASK = 16
MAX_PARTS = 250
"""Finer plans are simulated coarser."""
CHANGE_STEPS = 20
PARTITION_BYTES = (4 << 10, 1 << 30)
CREDIT_PARTS = (1.0, 16.0)
MEASUREMENT_NOISE = 0.03
"""Relative error of a measured rate."""
FIT_NOISE = 0.2
"""Relative error of a fitted latency or overhead."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Jobs, the candidates of each, and the speed each reached: T* over the time of a step, at most about 1."""

    layers: Array
    rates: Array
    static: Array
    candidates: Array
    """(jobs, candidates, 4)"""
    speeds: Array
    """(jobs, candidates)"""

    def __len__(self) -> int:
        return int(self.speeds.size)

    def of_jobs(self, jobs: slice) -> "Samples":
        """Those of some jobs, with all candidates of each."""
        return Samples(*(getattr(self, name)[jobs] for name in Samples.__dataclass_fields__))

    @staticmethod
    def joined(pieces: "list[Samples]") -> "Samples":
        fields = Samples.__dataclass_fields__
        return Samples(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in fields))


def generate(num_samples: int, *, seed: int, processes: int) -> Iterator[Samples]:
    """At least that many samples, piece by piece, in an order that depends on the seed alone."""
    pieces = -(-num_samples // (CANDIDATES_PER_JOB * JOBS_PER_TASK))
    seeds = [f"{seed}/{piece}" for piece in range(pieces)]
    if processes == 1:
        yield from map(_piece, seeds)
        return
    # A fresh interpreter per process: a fork would copy the threads' locks of whatever the caller has imported.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_piece, seeds, chunksize=1)


def _piece(seed: str) -> Samples:
    rng = random.Random(seed)
    jobs = [_job(scenario(rng), rng) for _ in range(JOBS_PER_TASK)]
    return Samples(*(np.stack(arrays) for arrays in zip(*jobs, strict=True)))


def _job(drawn: Scenario, rng: random.Random) -> tuple[Array, Array, Array, Array, Array]:
    workload, cluster = drawn
    candidates = list(islice(_candidates(rng, workload.num_bytes), CANDIDATES_PER_JOB))
    seen = replace(
        cluster,
        latency_s=cluster.latency_s * rng.lognormvariate(0, FIT_NOISE),
        overhead_s=cluster.overhead_s * rng.lognormvariate(0, FIT_NOISE),
    )
    features = job_features(workload, seen, _series(rng, cluster))
    best_s = workload.bound_s(cluster.seconds_per_byte)
    speeds = [best_s / simulated_s(workload, cluster, candidate, MAX_PARTS) for candidate in candidates]
    return (
        features.layers,
        features.rates,
        features.static,
        candidate_features(workload, candidates),
        np.array(speeds, dtype=np.float32),
    )


def _candidates(rng: random.Random, num_bytes: int) -> Iterator[Candidate]:
    """Partitions of 4 KB to 1 GB, at most the model, and credits of 1× to 16×."""
    low, high = PARTITION_BYTES[0], min(PARTITION_BYTES[1], num_bytes)
    while True:
        # Half of them where good plans are: nobody needs to know well how slow a very slow one is.
        smallest = low if rng.random() < 0.5 else max(low, num_bytes // 2000)
        partition = round(smallest * (high / smallest) ** rng.random())
        credit = round(partition * CREDIT_PARTS[0] * (CREDIT_PARTS[1] / CREDIT_PARTS[0]) ** rng.random())
        yield Candidate(rng.choice(("bytescheduler", "rsag")), partition, max(credit, partition))


def _series(rng: random.Random, cluster: Cluster) -> list[float]:
    """The rates of the last steps: before the last change, if the window reaches so far, those of another bandwidth."""
    since = rng.randrange(1, CHANGE_STEPS + 1)
    before = replace(cluster, gbps=cluster.gbps * 10 ** rng.uniform(-1, 1))
    return [
        (1 / (cluster if place >= SERIES - since else before).seconds_per_byte)
        * rng.lognormvariate(0, MEASUREMENT_NOISE)
        for place in range(SERIES)
    ]
