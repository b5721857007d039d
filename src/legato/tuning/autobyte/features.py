"""Features: what the meta-network sees of a job and of a candidate, as numbers that have no unit.

Times are counted in the model's own computation, bytes in what a link carries meanwhile, all but shares as logarithms;
so a job that is twice as large on a network twice as fast looks the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from legato.core import Workload
from legato.sim.cluster import Architecture, Cluster
from legato.tuning.candidate import Candidate
from legato.tuning.twin.estimate import link_cost_of
from legato.tuning.twin.transports import KERNEL_BYTES

Array = npt.NDArray[np.float32]

SEGMENTS = 32
"""Every model is embedded to so many segments of layers, whatever its depth."""
LAYER_CHANNELS = 3
"""Of a segment: its share of backward, of forward and of the bytes. The bytes are what stands for the model's type."""
SERIES = 10
"""Measured rates that are looked at, the newest last."""
STATIC = 7
CANDIDATE = 4
_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class JobFeatures:
    """The features of one job in one window."""

    layers: Array
    """(segments, channels)"""
    rates: Array
    """Bytes of the model that each measured rate would carry during computation, as logarithms."""
    static: Array
    """Workers, layers, architecture, what a part costs before its first byte, and communication over computation."""


def as_trained(candidate: Candidate, cluster: Cluster) -> Candidate:
    """A candidate in the network's terms, where urgent parts overtake: two parts in flight, or what the kernel has.

    The samples it was trained with are of windows that reopened when a sum had arrived (docs/decisions/001): with a
    single part in flight they left links idle.
    """
    if not cluster.overtaking or candidate.partition_bytes is None or candidate.credit_bytes is None:
        return candidate
    window_bytes = max(2 * candidate.partition_bytes, KERNEL_BYTES)
    return replace(candidate, credit_bytes=min(candidate.credit_bytes, window_bytes))


def job_features(workload: Workload, cluster: Cluster, rates_bytes_per_s: Sequence[float]) -> JobFeatures:
    """What is seen of a job: `cluster` is what was fitted, the rates are goodput, step by step."""
    compute_s = max(workload.compute_s, 1e-9)
    rates = [*rates_bytes_per_s[-SERIES:]] or [1 / cluster.seconds_per_byte]
    series = np.array([rates[0]] * (SERIES - len(rates)) + rates)
    prices = link_cost_of(cluster)
    static = (
        np.log2(cluster.workers) / 4,
        np.log2(len(workload.layers)) / 4 - 1,
        float(cluster.architecture is Architecture.PS),
        float(cluster.architecture is not Architecture.PS),
        _log(prices.spacing.start_s / compute_s),
        _log(prices.alone.start_s / compute_s),
        _log(workload.num_bytes * cluster.seconds_per_byte / compute_s),
    )
    return JobFeatures(
        layers=_embedded(workload),
        rates=np.array([_log(rate * compute_s / workload.num_bytes) for rate in series], dtype=np.float32),
        static=np.array(static, dtype=np.float32),
    )


def candidate_features(workload: Workload, candidates: Sequence[Candidate]) -> Array:
    """(candidates, 4): which policy, the partition as a share of the model, and the credit in parts."""
    total = workload.num_bytes
    policies = np.array([(each.policy == "bytescheduler", each.policy == "rsag") for each in candidates])
    partition = np.array([each.partition_bytes or total for each in candidates])
    credit = np.array([each.credit_bytes or 16 * (each.partition_bytes or total) for each in candidates])
    columns = (
        *policies.T,
        np.log10(np.maximum(partition / total, _FLOOR)) / 2,
        np.log2(np.maximum(credit / partition, 1.0)) / 2 - 1,
    )
    return np.stack(columns, axis=1, dtype=np.float32)


def _log(value: float) -> float:
    return float(np.log10(max(value, _FLOOR)) / 2)


def _embedded(workload: Workload) -> Array:
    """Layer times and bytes spread over the segments: a layer counts to those it covers, by how much it does."""
    values = np.array([(layer.backward_s, layer.forward_s, layer.num_bytes) for layer in workload.layers])
    shares = values / np.maximum(values.sum(axis=0), 1e-9)
    cumulative = np.vstack([np.zeros(LAYER_CHANNELS), np.cumsum(shares, axis=0)])
    at = np.linspace(0, len(shares), SEGMENTS + 1)
    depths = np.arange(len(shares) + 1)
    edges = np.stack([np.interp(at, depths, cumulative[:, each]) for each in range(LAYER_CHANNELS)], axis=1)
    # Shares of 1/32 become 1, and a segment that holds half of the model does not drown the others.
    embedded: Array = np.sqrt(np.diff(edges, axis=0) * SEGMENTS).astype(np.float32)
    return embedded
