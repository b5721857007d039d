"""How legato is called to be one of the systems: the arguments of `legato.torch.schedule`, and nothing beside them."""

import random
from dataclasses import dataclass, replace

from bench.grid.cell import Cell
from bench.grid.lineup import System
from bench.study.settings import TCP
from bench.tuning import WINDOWS, Bench, run
from legato.core import Workload
from legato.core.policies import by_name
from legato.sim import Cluster
from legato.torch.tuning.live import SPACE
from legato.tuning.autobyte.dataset import Scenario
from legato.tuning.autobyte.tuner import AutoByte
from legato.tuning.candidate import BASELINE, C10D, NATIVE, Candidate, Space
from legato.tuning.search.bayes import POINTS, Bayes
from legato.tuning.tuner import Tuner
from legato.tuning.twin.search import search
from legato.tuning.twin.transports import LATENCY_S, OVERHEAD_S
from legato.units import format_bytes

_SPACE = Space(policies=("bytescheduler",))
_ITEM_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Call:
    """Keyword arguments, as a user writes them."""

    transport: str
    policy: str = "auto"
    partition_bytes: int | None = None
    credit_bytes: int | None = None
    compression: str | None = None
    tuner: str = "off"
    """Systems take turns of a few steps: no windows for a tuner. What one finds beforehand is in the sizes."""

    def words(self) -> str:
        """The sizes asked for."""
        if self.partition_bytes is None:
            return ""
        parts = f"{format_bytes(self.partition_bytes)} parts"
        return parts if self.credit_bytes is None else f"{parts}, {format_bytes(self.credit_bytes)} of credit"


def call(each: System, cell: Cell, workload: Workload, bytes_per_s: float) -> Call | None:
    """The one that makes a system; None for those that are not legato."""
    match each.family:
        case "c10d":
            return Call(transport=C10D, policy=each.policy, partition_bytes=each.bucket_bytes)
        case "legato":
            return _native(each, cell, workload, bytes_per_s)
        case _:
            return None


def _native(each: System, cell: Cell, workload: Workload, bytes_per_s: float) -> Call:
    """Published sizes scale with the links."""
    cluster = cell.cluster(bytes_per_s, with_servers=each.uses_servers)
    match each.variation:
        case "bo":
            return _by(_tuned(Bayes(_SPACE, seed=0), POINTS, workload, cluster))
        case "autobyte":
            return _by(_tuned(AutoByte(_SPACE, replace(cluster, gbps=1.0)), WINDOWS, workload, cluster))
        case "" | "servers" | "fifo":
            return Call(transport=NATIVE, policy=each.policy, partition_bytes=_own_partition(workload, cluster))
        case _:
            policy = by_name(each.policy)
            return Call(
                transport=NATIVE,
                policy=each.policy,
                partition_bytes=_scaled(policy.partition_bytes, cell),
                credit_bytes=_scaled(policy.credit_bytes, cell),
            )


def _by(found: Candidate) -> Call:
    return Call(
        transport=NATIVE,
        policy=found.policy,
        partition_bytes=found.partition_bytes,
        credit_bytes=found.credit_bytes,
    )


def _scaled(num_bytes: int | None, cell: Cell) -> int | None:
    """None, which leaves it to the policy, where links are as they were published for."""
    return None if num_bytes is None or cell.scale == 1 else max(round(num_bytes / cell.scale), _ITEM_BYTES)


def _own_partition(workload: Workload, cluster: Cluster) -> int | None:
    """What legato's twin finds best in simulation; what is in flight is left to the policy."""
    seen = replace(cluster, overtaking=True, latency_s=LATENCY_S, overhead_s=OVERHEAD_S)
    return next(each for each in search(workload, seen, SPACE) if each != BASELINE).partition_bytes


def _tuned(tuner: Tuner, windows: int, workload: Workload, cluster: Cluster) -> Candidate:
    """What a tuner settles on in simulation, where every step and part is measured with noise."""
    bench = Bench(Scenario(workload, replace(cluster, **TCP)), random.Random(0))
    run(tuner, bench, windows)
    return tuner.ask()
