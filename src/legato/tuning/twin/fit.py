"""Fitting a cluster to costs: which bandwidth, latency and overhead make the simulated links as dear as the real ones.

What a part costs is linear in 1/bandwidth, α and overhead. Three questions to the simulated network tell how much of
each is in a price, alone and in a row, and one least squares over all observations gives the three.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from legato.sim.cluster import Cluster
from legato.tuning.statistics import Statistics
from legato.tuning.twin.costs import Costs, count, moments
from legato.tuning.twin.link_cost import Prices, prices_of
from legato.tuning.twin.preemption import cluster_of

Matrix = npt.NDArray[np.float64]

MIN_OBSERVATIONS = 10
"""Fewer are no ground for three numbers; a window of ten steps has at least as many."""
_BANDWIDTH, _LATENCY, _OVERHEAD = range(3)
_UNIT_S = 1e-6
"""Small beside what bytes take, so that the links and not the way are what limits parts in a row."""
_LEAST = np.array([1 / 400, 0.0, 0.0])
"""No network is faster than 400 Gbps; latency and overhead are not below 0."""
_PLAUSIBLE_S = 300e-6
_MISFIT = 0.05
"""Rows are simpler than what happens on links, so observations are off by some 5 %, and more of them are no better: as
probable as a latency or overhead of 300 µs. A fit that needs milliseconds must explain much by them."""
_HYPOTHESES = (
    [_BANDWIDTH],
    [_LATENCY],
    [_OVERHEAD],
    [_BANDWIDTH, _LATENCY],
    [_BANDWIDTH, _OVERHEAD],
    [_LATENCY, _OVERHEAD],
    [_BANDWIDTH, _LATENCY, _OVERHEAD],
)
"""What may be above its least value. Of hypotheses that explain alike the first counts: where nobody could tell latency
from overhead, more credit then promises to hide it, is tried, and tells. Where parts are so small that their bytes
drown in noise, bandwidth is at its end, and the time is not taken for that of their bytes."""


def fitted(shape: Cluster, costs: Costs) -> Cluster | None:
    """The cluster of this shape (hosts, servers, architecture) whose parts cost what was seen; None: too little was."""
    observations = count(costs.whole) + count(costs.half)
    if observations < MIN_OBSERVATIONS:
        return None
    base = replace(shape, gbps=1.0, latency_s=0.0, overhead_s=0.0, rates=((0.0, 1.0),), background=())
    units = (base, replace(base, latency_s=_UNIT_S), replace(base, overhead_s=_UNIT_S))
    normal, right = np.zeros((3, 3)), np.zeros(3)
    normal[[_LATENCY, _OVERHEAD], [_LATENCY, _OVERHEAD]] = observations * (_MISFIT / _PLAUSIBLE_S) ** 2
    for sums, halves in ((costs.whole, False), (costs.half, True)):
        design = _design([prices_of(unit, halves=halves) for unit in units])
        products, ones = moments(sums)
        normal += design.T @ products @ design
        right += design.T @ ones
    values = _bounded(normal, right)
    return replace(
        base,
        gbps=float(1 / values[_BANDWIDTH]),
        latency_s=float(values[_LATENCY]),
        overhead_s=float(values[_OVERHEAD]),
    )


def measured_cluster(shape: Cluster, costs: Costs, statistics: Statistics) -> Cluster | None:
    """The cluster that statistics speak of: by its rates where parts overtake, otherwise by what parts have cost."""
    if shape.overtaking:
        return cluster_of(shape, statistics.workload, statistics.candidate, statistics.rates_bytes_per_s)
    return fitted(shape, costs)


def _design(units: list[Prices]) -> Matrix:
    """What a row takes, as a matrix from (1/bandwidth, latency, overhead) to (parts, bytes, one, last bytes)."""
    at_1_gbps = units[_BANDWIDTH]
    design = np.zeros((4, 3))
    design[1, _BANDWIDTH] = at_1_gbps.spacing.seconds_per_byte
    design[3, _BANDWIDTH] = at_1_gbps.alone.seconds_per_byte - at_1_gbps.spacing.seconds_per_byte
    for place in (_LATENCY, _OVERHEAD):
        design[0, place] = units[place].spacing.start_s / _UNIT_S
        design[2, place] = (units[place].alone.start_s - units[place].spacing.start_s) / _UNIT_S
    return design


def _bounded(normal: Matrix, right: Matrix) -> Matrix:
    """Least squares with no value below its least, by trying which are above."""
    scale = 1 / np.sqrt(np.maximum(np.diag(normal), 1e-300))
    beyond = right - normal @ _LEAST
    best, best_loss = np.zeros(3), 0.0
    for free in _HYPOTHESES:
        part = normal[np.ix_(free, free)] * np.outer(scale[free], scale[free])
        if np.linalg.cond(part) > 1e10:
            continue
        values = np.zeros(3)
        values[free] = np.linalg.solve(part, beyond[free] * scale[free]) * scale[free]
        loss = float(values @ normal @ values - 2 * values @ beyond)
        # Losses are below 0, by as much as the observations are explained.
        if (values >= 0).all() and loss < best_loss - 1e-6 * abs(loss):
            best, best_loss = values, loss
    bounded: Matrix = best + _LEAST
    return bounded
