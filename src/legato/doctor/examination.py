"""An examination: facts of all ranks, their links, and a forecast where there is a model."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from legato.core import Workload
from legato.doctor.checks import Check, check_all
from legato.doctor.facts import Facts, read_facts
from legato.doctor.forecast import Prognosis, foresee
from legato.doctor.links import Links, gather, measure_links
from legato.job import Job
from legato.records import build
from legato.settings import Settings

Profiler = Callable[[], Workload]
"""Every rank calls it at the same time, so that ranks of one host are in each other's way as in training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found."""

    ranks: tuple[Facts, ...]
    links: Links | None
    """None in a job of one, where the user gives none."""
    checks: tuple[Check, ...]
    prognosis: Prognosis | None
    """None without a model or without links."""
    took_s: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def examine(
    job: Job, profile: Profiler | None = None, *, given: Links | None = None, servers: tuple[int, ...] | None = None
) -> Diagnosis:
    """All ranks of a job call it; rank 0's answer has the forecast. With links that are `given`, it is of those."""
    begin_s = time.monotonic()
    ranks, links, workload = _together(job, profile) if job.size > 1 else _alone(job.settings, profile)
    asked = given or links
    prognosis = None
    if workload is not None and asked is not None and job.rank == 0:
        prognosis = foresee(workload, asked, job.settings, servers)
    return Diagnosis(
        ranks=tuple(ranks),
        links=links or given,
        checks=tuple(check_all(ranks, links or given, job.settings)),
        prognosis=prognosis,
        took_s=time.monotonic() - begin_s,
    )


def _alone(settings: Settings, profile: Profiler | None) -> tuple[list[Facts], None, Workload | None]:
    return [read_facts(settings)], None, None if profile is None else profile()


def _together(job: Job, profile: Profiler | None) -> tuple[list[Facts], Links, Workload | None]:
    group = job.group
    group.barrier()
    facts = read_facts(job.settings, group.session.member.addresses[job.rank][0])
    ranks = [build(Facts, each) for each in gather(group, "legato/doctor/facts", asdict(facts))]
    links = measure_links(group)
    if profile is None:
        return ranks, links, None
    group.barrier()
    texts = gather(group, "legato/doctor/workloads", profile().to_json())
    # The others wait for the slowest.
    workload = max((Workload.from_json(text) for text in texts), key=lambda each: each.compute_s)
    return ranks, links, workload
