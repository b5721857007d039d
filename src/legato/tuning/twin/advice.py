"""Advice: what would help where scheduling does not, with the twin's numbers."""

from legato.sim.cluster import Architecture, Cluster
from legato.tuning.twin.twin import Twin

NOTEWORTHY = 0.05
"""Gains below this are not worth anybody's trouble."""


def advice(twin: Twin, cluster: Cluster) -> tuple[str, ...]:
    """Lines such as `fp16 gradients: 84.1 ms ± 4% a step, 31 % faster`, the most helpful first."""
    present_s = twin.predictions()[0].iteration_s
    asked = {
        "half the bytes (fp16 gradients)": (twin.what_if(bytes_by=0.5), 1.0),
        "twice the batch": (twin.what_if(time_by=2.0), 2.0),
    }
    if cluster.architecture is Architecture.PS and cluster.servers < cluster.workers:
        servers = min(2 * cluster.servers or max(cluster.workers // 2, 1), cluster.workers)
        asked[f"{servers} servers instead of {cluster.servers}"] = (twin.what_if(servers=servers), 1.0)
    # Work done per second: a batch of twice the size does twice the work in its step.
    gains = {
        what: (present_s * work / prediction.iteration_s - 1, prediction) for what, (prediction, work) in asked.items()
    }
    return tuple(
        f"{what}: {prediction} a step, {gain:.0%} more samples a second"
        for what, (gain, prediction) in sorted(gains.items(), key=lambda entry: -entry[1][0])
        if gain > NOTEWORTHY
    )
