"""Links: how fast they are, by the rates of a window. That is all that training measures of them."""

from dataclasses import replace

from legato.sim.cluster import Cluster
from legato.tuning.statistics import Statistics
from legato.tuning.twin.preemption import LATENCY_S, OVERHEAD_S, slowed
from legato.tuning.twin.transports import cluster_over


def measured_cluster(shape: Cluster, statistics: Statistics) -> Cluster | None:
    """The cluster of this shape (hosts, servers) on which a window has its rates; None: nothing was waited for.

    How fast links are, they are for every transport. Latency and overhead are not measured but assumed.
    """
    rates = statistics.rates_bytes_per_s
    if not rates:
        return None
    # Where the last sums came unnoticed, a rate is too high: the lower ones are right.
    rate = sorted(rates)[len(rates) // 4]
    base = replace(shape, gbps=1.0, latency_s=LATENCY_S, overhead_s=OVERHEAD_S)
    at_1_gbps = slowed(cluster_over(base, statistics.candidate.transport), statistics.workload, statistics.candidate)
    return replace(base, gbps=rate * at_1_gbps.seconds_per_byte)
