"""The plans of others on legato's engine: how large a part is, and how much may be in flight."""

import random
from dataclasses import replace

from bench.grid.cell import Cell
from bench.grid.lineup import System
from bench.study.settings import TCP
from bench.tuning import WINDOWS, Bench, run
from legato.core import Policy, Workload
from legato.core.policies import P3, ByteScheduler
from legato.sim import Cluster
from legato.torch.tuning import SPACE
from legato.tuning.autobyte import AutoByte
from legato.tuning.bayes import BYTESCHEDULER, Bayes
from legato.tuning.candidate import BASELINE, Candidate, Space
from legato.tuning.overtaking import LATENCY_S, OVERHEAD_S
from legato.tuning.scenario import Scenario
from legato.tuning.search import search
from legato.tuning.tuner import Tuner

_SPACE = Space(policies=("bytescheduler",))


def candidate(each: System, cell: Cell, workload: Workload, bytes_per_s: float) -> Candidate:
    """Partition and credit, for those on legato's engine; published sizes scale with the links."""
    if not each.is_native:
        return BASELINE
    match each.variation:
        case "p3":
            policy: Policy = P3()
        case "bytescheduler":
            policy = ByteScheduler()
        case "bo":
            return _tuned(Bayes(_SPACE, seed=0), BYTESCHEDULER.points, workload, cell.cluster(bytes_per_s))
        case "autobyte":
            shape = replace(cell.cluster(bytes_per_s), gbps=1.0)
            return _tuned(AutoByte(_SPACE, shape), WINDOWS, workload, cell.cluster(bytes_per_s))
        case _:
            return _own(workload, cell.cluster(bytes_per_s, with_servers=each.uses_servers))
    assert policy.partition_bytes is not None
    assert policy.credit_bytes is not None
    return Candidate(
        policy.name,
        max(round(policy.partition_bytes / cell.scale), 4),
        max(round(policy.credit_bytes / cell.scale), 4),
    )


def _own(workload: Workload, cluster: Cluster) -> Candidate:
    """Parts of the size that legato's twin finds best in simulation; what is in flight is left to the socket."""
    seen = replace(cluster, overtaking=True, latency_s=LATENCY_S, overhead_s=OVERHEAD_S)
    best = next(each for each in search(workload, seen, SPACE) if each != BASELINE)
    return replace(best, credit_bytes=None)


def _tuned(tuner: Tuner, windows: int, workload: Workload, cluster: Cluster) -> Candidate:
    """What a tuner settles on in simulation, where every step and part is measured with noise."""
    bench = Bench(Scenario(workload, replace(cluster, **TCP)), random.Random(0))
    run(tuner, bench, windows)
    return tuner.ask()
