"""Scenarios: random workloads on random networks, for training tuners and for judging them."""

import random
from math import exp, log
from typing import NamedTuple

from legato.core import Layer, Workload
from legato.sim.cluster import Architecture, Cluster
from legato.sim.zoo import ZOO, workload

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
