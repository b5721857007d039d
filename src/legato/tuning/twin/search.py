"""Searching a plan space in simulation, within the time between two steps.

All candidates are estimated in closed form, and the most promising are simulated, as many as a budget of parts allows.
"""

from collections.abc import Iterable

import numpy as np

from legato.core import Workload
from legato.sim.cluster import Cluster
from legato.sim.one_step import Step, coarsened, one_step
from legato.tuning.candidate import BASELINE, Candidate, Space
from legato.tuning.statistics import WINDOW_STEPS, Statistics
from legato.tuning.twin.estimate import Array, Estimator
from legato.tuning.twin.transports import cluster_over, seen, slowed

_NOTHING_S = 1e-9
"""A step that waits for less waits for nothing, and the meter does not see when communication ended."""


TOTAL_PARTS = 1200
"""How much a search may simulate: parts and tensors of all steps together, each of which costs some 5 to 10 µs."""
STEP_PARTS = 150
"""Parts of one simulated step; finer plans are simulated coarser."""


def simulated_s(workload: Workload, cluster: Cluster, candidate: Candidate, max_parts: int = 4000) -> float:
    """Time of a step under a candidate, simulated with at most about that many parts."""
    return _step(workload, cluster, candidate, max_parts).iteration_s


def simulated_window(workload: Workload, cluster: Cluster, candidate: Candidate, max_parts: int = 4000) -> Statistics:
    """What a job would measure under a candidate; as by the meter, rates span the first gradient to the last sum."""
    step = _step(workload, cluster, candidate, max_parts)
    exposed_s = step.iteration_s - workload.compute_s
    rate = workload.num_bytes / (max(step.parts.finished_s.values()) - min(step.parts.started_s.values()))
    return Statistics(
        candidate=candidate,
        iteration_s=step.iteration_s,
        workload=workload,
        rates_bytes_per_s=(rate,) * WINDOW_STEPS if exposed_s > _NOTHING_S else (),
    )


def _step(workload: Workload, cluster: Cluster, candidate: Candidate, max_parts: int) -> Step:
    cluster = cluster_over(cluster, candidate.transport)
    plan = seen(candidate, cluster).plan(workload.tensors)
    return one_step(workload, *coarsened(workload, slowed(cluster, workload, candidate), plan, max_parts))


def search(
    workload: Workload, cluster: Cluster, space: Space, *, also: Iterable[Candidate] = ()
) -> dict[Candidate, float]:
    """Time of a step under the baseline, the candidates of `also` and the best of the space; the best comes first."""
    tensors = len(workload.tensors)
    candidates = list(space)
    estimates_s = _estimates_s(workload, cluster, candidates)
    known = {each: simulated_s(workload, cluster, each, STEP_PARTS) for each in {BASELINE, *also}}
    left = TOTAL_PARTS
    for place in estimates_s.argsort(kind="stable"):
        candidate = candidates[place]
        left -= tensors + min(STEP_PARTS, tensors + workload.num_bytes // (candidate.partition_bytes or 1 << 62))
        if left < 0 and len(known) > 2:
            break
        known[candidate] = simulated_s(workload, cluster, candidate, STEP_PARTS)
    return dict(sorted(known.items(), key=lambda entry: (entry[1], entry[0].policy)))


def _estimates_s(workload: Workload, cluster: Cluster, candidates: list[Candidate]) -> Array:
    estimates_s = np.empty(len(candidates))
    for transport in {each.transport for each in candidates}:
        places = [place for place, each in enumerate(candidates) if each.transport == transport]
        chosen = [candidates[place] for place in places]
        estimates_s[places] = _estimates_over(workload, cluster_over(cluster, transport), chosen)
    return estimates_s


def _estimates_over(workload: Workload, cluster: Cluster, candidates: list[Candidate]) -> Array:
    """Of candidates of one transport, whose cluster this is."""
    if not cluster.overtaking:
        return Estimator(workload, cluster).iteration_s(candidates)
    estimators = [Estimator(workload, slowed(cluster, workload, each)) for each in candidates]
    pairs = zip(estimators, candidates, strict=True)
    return np.concatenate([estimator.iteration_s([seen(each, cluster)]) for estimator, each in pairs])
