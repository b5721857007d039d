"""Links: what is known of a job's links, fitted anew with every window."""

from dataclasses import replace

from legato.sim.cluster import Cluster
from legato.tuning.candidate import C10D
from legato.tuning.statistics import Statistics
from legato.tuning.twin.costs import Costs
from legato.tuning.twin.fit import measured_cluster
from legato.tuning.twin.transports import cluster_over

MEMORY = 0.5
"""Weight of the windows before in what is known of costs."""


class Links:
    """Of one job, whose hosts and servers are known and whose speed is not."""

    def __init__(self, shape: Cluster) -> None:
        self._shape = shape
        self._cluster = shape
        self._costs = Costs()
        self._costs_over: str | None = None

    def tell(self, statistics: Statistics) -> Cluster | None:
        """The cluster that the windows so far speak of; None: they say too little.

        How fast links are, they are for every transport; what a part costs before its first byte is each one's own.
        """
        transport = statistics.candidate.transport
        if transport != self._costs_over:
            self._costs, self._costs_over = Costs(), transport
        self._costs = self._costs.scaled(MEMORY) + statistics.costs
        cluster = measured_cluster(cluster_over(self._shape, transport), self._costs, statistics)
        if cluster is not None:
            self._cluster = replace(self._cluster, gbps=cluster.gbps) if transport == C10D else cluster
        return cluster and self._cluster

    def forget(self) -> None:
        """The world has changed: what parts have cost is old."""
        self._costs = Costs()
