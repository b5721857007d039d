"""Transports as a simulated cluster can see them: the same hosts and links, another way to make sums."""

from dataclasses import replace

from legato.sim.cluster import Architecture, Cluster, Ownership
from legato.tuning.candidate import BASELINE, C10D, KIB, NATIVE, Space
from legato.tuning.twin.preemption import LATENCY_S, OVERHEAD_S

STARTUP_S = 0.5e-3
"""What a collective of a process group costs before its first byte."""
OPERATIONS_IN_FLIGHT = 2
"""How many of them a backend works on at once: Gloo has two threads."""
PARTS_IN_FLIGHT = 16
"""The native engine lets urgent parts overtake within any window, so none has to be small (docs/decisions/012)."""

SPACES = {
    NATIVE: Space(policies=("bytescheduler",), credit_parts=(PARTS_IN_FLIGHT,), transports=(NATIVE,)),
    C10D: Space(credit_parts=(OPERATIONS_IN_FLIGHT,), transports=(C10D,)),
}
"""What is worth trying over each transport, all of which it can run."""
BASELINES = {
    NATIVE: replace(BASELINE, partition_bytes=256 * KIB, transport=NATIVE),
    C10D: replace(BASELINE, transport=C10D),
}
"""The baseline over each. Over native in the parts that a job begins with: whole tensors would each go to one owner."""


def cluster_over(cluster: Cluster, transport: str | None) -> Cluster:
    """The cluster as this transport uses it: ours a parameter server, c10d a ring of collectives; None, as it is."""
    if transport is None:
        return cluster
    if transport != C10D:
        return replace(
            cluster,
            architecture=Architecture.PS,
            latency_s=max(cluster.latency_s, LATENCY_S),
            overhead_s=max(cluster.overhead_s, OVERHEAD_S),
            overtaking=True,
        )
    return replace(
        cluster,
        architecture=Architecture.ALLREDUCE,
        servers=0,
        deployment=Ownership.JOINT,
        latency_s=max(cluster.latency_s, STARTUP_S / max(cluster.workers - 1, 1)),
        overtaking=False,
        operations_in_flight=OPERATIONS_IN_FLIGHT,
    )
