"""The native engine as the simulator can see it: what differs where urgent parts overtake and a part has one owner.

Simulated links finish a part that they have begun, and spread every part over all owners. Two corrections make up for
it, and then a rate is all that must be measured. ResNet50 on 4 hosts × 1 Gbit/s with 16 parts in flight, ms a step:

    parts of      64 KiB  256 KiB  1 MiB  2 MiB  8 MiB
    measured       321      330     348    366    369
    predicted      320      326     353    374    379     from a window with parts of 256 KiB
    predicted      340      347     375    398    403     from one with parts of 2 MiB, 2 in flight, which took 398
    predicted      316      320     346    367    372     from one with parts of 8 MiB, 3 in flight
"""

from dataclasses import replace

from legato.core import Workload
from legato.core.partition import split
from legato.sim.cluster import Cluster
from legato.tuning.candidate import Candidate

KERNEL_BYTES = 512 << 10
"""What may be on its way to all peers although something more urgent has come."""
LATENCY_S, OVERHEAD_S = 100e-6, 5e-6
"""Small beside everything else: 570 parts more a step cost less than 3 ms (docs/decisions/012)."""


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
