"""AutoByte: Ma et al., "AutoByte: Automatic Configuration for Optimal Communication Scheduling in DNN Training".

A meta-network, trained beforehand, predicts the speed of every candidate from what was measured in the last window. A
plan is changed when the predicted gain is above 5 %; where prediction and measurement are more than 10 % apart, the
network learns from what was measured here.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from legato.core import Workload
from legato.errors import InputError
from legato.sim.cluster import Cluster
from legato.tuning.autobyte.features import JobFeatures, as_trained, candidate_features, job_features
from legato.tuning.candidate import Candidate, Space
from legato.tuning.live.guard import Trigger
from legato.tuning.statistics import Statistics
from legato.tuning.twin.transports import cluster_over, measured_cluster

if TYPE_CHECKING:
    from legato.tuning.autobyte.metanet import MetaNetwork

HISTORY = 16
"""Measurements that are kept to learn from."""


class AutoByte:
    """A tuner that asks the meta-network; needs torch."""

    def __init__(
        self,
        space: Space,
        shape: Cluster,
        *,
        start: Candidate | None = None,
        network: "MetaNetwork | None" = None,
    ) -> None:
        """`start` is what runs already, of the space or not; without it, the space says where to begin."""
        self._candidates = list(space)
        self._network = network or shipped_network()
        self._trigger = Trigger()
        self._shape = shape
        self._history: deque[tuple[JobFeatures, Candidate, Workload, float]] = deque(maxlen=HISTORY)
        self._choice = start or space.start
        self._settled = False
        self.num_adaptations = 0
        """How often the network had to learn."""

    def ask(self) -> Candidate:
        return self._choice

    def tell(self, statistics: Statistics) -> None:
        cluster = measured_cluster(self._shape, statistics)
        if cluster is None:
            return
        present, workload = statistics.candidate, statistics.workload
        candidates = [*self._candidates, present]
        jobs = {each: _Seen.of(statistics, cluster, each) for each in {each.transport for each in candidates}}
        job = jobs[present.transport]
        self._history.append(
            (job.features, as_trained(present, job.cluster), workload, job.best_s / statistics.iteration_s)
        )
        predicted_s = self._predicted_s(jobs, workload, candidates)
        if self._trigger.has_drifted(float(predicted_s[-1]), statistics.iteration_s):
            self._adapt()
            predicted_s = self._predicted_s(jobs, workload, candidates)
        best = int(predicted_s[:-1].argmin())
        if self._trigger.worth_switching(float(predicted_s[-1]), float(predicted_s[best])):
            self._choice = self._candidates[best]
        elif present in set(self._candidates):
            self._choice = present
        self._settled = self._choice == present

    @property
    def settled(self) -> bool:
        return self._settled

    def _predicted_s(
        self, jobs: "Mapping[str | None, _Seen]", workload: Workload, candidates: Sequence[Candidate]
    ) -> np.ndarray:
        """What a step would take under each candidate, by what each transport would make of the job."""
        predicted_s = np.empty(len(candidates))
        for transport, job in jobs.items():
            places = [place for place, each in enumerate(candidates) if each.transport == transport]
            rows = candidate_features(workload, [as_trained(candidates[place], job.cluster) for place in places])
            predicted_s[places] = job.best_s / self._network.predict(job.features, rows).astype(float)
        return predicted_s

    def _adapt(self) -> None:
        jobs, candidates, workloads, speeds = zip(*self._history, strict=True)
        rows = [
            candidate_features(workload, [candidate]) for candidate, workload in zip(candidates, workloads, strict=True)
        ]
        self._network.adapt(jobs, np.concatenate(rows), np.array(speeds, dtype=np.float32))
        self.num_adaptations += 1


class _Seen(NamedTuple):
    """A job in one window as a transport would carry it."""

    cluster: Cluster
    features: JobFeatures
    best_s: float

    @classmethod
    def of(cls, statistics: Statistics, cluster: Cluster, transport: str | None) -> "_Seen":
        over = cluster_over(cluster, transport)
        features = job_features(statistics.workload, over, statistics.rates_bytes_per_s)
        return cls(over, features, statistics.workload.bound_s(over.seconds_per_byte))


def shipped_network() -> "MetaNetwork":
    """The network whose weights come with legato."""
    try:
        from legato.tuning.autobyte.metanet import MetaNetwork
    except ImportError:
        raise InputError("the tuner 'autobyte' needs torch: pip install 'legato[tune]'") from None
    with as_file(files("legato.tuning.autobyte") / "data" / "autobyte.safetensors") as path:
        return MetaNetwork.read(path)[0]
