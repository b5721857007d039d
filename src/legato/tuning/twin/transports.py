"""Transports as a simulated cluster can see them: the same hosts and links, another way to make sums.

In the native engine urgent parts overtake, and a part has one owner; simulated links finish a part that they have
begun, and spread every part over all owners. Two corrections (`seen`, `slowed`) make up for it, and then a rate is all
that must be measured. ResNet50 on 4 hosts × 1 Gbit/s with 16 parts in flight, ms a step:

    parts of      64 KiB  256 KiB  1 MiB  2 MiB  8 MiB
    measured       321      330     348    366    369
    predicted      320      326     353    374    379     from a window with parts of 256 KiB
    predicted      340      347     375    398    403     from one with parts of 2 MiB, 2 in flight, which took 398
    predicted      316      320     346    367    372     from one with parts of 8 MiB, 3 in flight
"""

from dataclasses import replace

from legato.core import Workload
from legato.core.part import split
from legato.sim.cluster import Architecture, Cluster, Ownership
from legato.tuning.candidate import BASELINE, C10D, KIB, NATIVE, Candidate, Space
from legato.tuning.statistics import Statistics

STARTUP_S = 0.5e-3
"""What a collective of a process group costs before its first byte."""
OPERATIONS_IN_FLIGHT = 2
"""How many of them a backend works on at once: Gloo has two threads."""
PARTS_IN_FLIGHT = 16
"""The native engine lets urgent parts overtake within any window, so none has to be small (docs/decisions/012)."""
KERNEL_BYTES = 512 << 10
"""What may be on its way to all peers although something more urgent has come."""
LATENCY_S, OVERHEAD_S = 100e-6, 5e-6
"""Small beside everything else: 570 parts more a step cost less than 3 ms (docs/decisions/012)."""

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


def seen(candidate: Candidate, cluster: Cluster) -> Candidate:
    """The candidate with only that in flight which can be in an urgent part's way: one part, or what the kernel has.

    An urgent part overtakes within a larger one, at its next chunk, so to others a part is never longer than that.
    """
    if not cluster.overtaking or candidate.partition_bytes is None:
        return candidate
    part_bytes = min(candidate.partition_bytes, KERNEL_BYTES)
    return replace(candidate, partition_bytes=part_bytes, credit_bytes=part_bytes)


def slowed(cluster: Cluster, workload: Workload, candidate: Candidate) -> Cluster:
    """The cluster with what large parts leave of its links."""
    if not cluster.overtaking:
        return cluster
    return replace(cluster, gbps=cluster.gbps * _utilisation(cluster, workload, candidate))


def _utilisation(cluster: Cluster, workload: Workload, candidate: Candidate) -> float:
    """A part is one owner's, so at the end of a step about one part's time passes on links that others leave idle."""
    lengths = [
        length
        for tensor in workload.tensors
        for _, length in split(tensor.num_bytes, candidate.partition_bytes, tensor.item_bytes)
    ]
    typical_bytes = sum(length * length for length in lengths) / workload.num_bytes
    return 1 / (1 + cluster.workers * typical_bytes / workload.num_bytes)


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
