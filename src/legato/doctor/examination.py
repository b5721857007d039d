"""An examination: facts of all ranks, their links, and a model; then what they mean, and a forecast."""

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
class Examination:
    """What the ranks of a job have found; the same on each."""

    ranks: tuple[Facts, ...]
    links: Links | None = None
    """None in a job of one."""
    workload: Workload | None = None
    """None without a model."""
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What it means."""

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


def examine(job: Job, profile: Profiler | None = None) -> Examination:
    """All ranks of a job call it."""
    begin_s = time.monotonic()
    ranks, links = _together(job) if job.size > 1 else ([read_facts(job.settings)], None)
    workload = None if profile is None else _slowest(job, profile)
    return Examination(ranks=tuple(ranks), links=links, workload=workload, took_s=time.monotonic() - begin_s)


def diagnose(
    examination: Examination, settings: Settings, *, given: Links | None = None, servers: tuple[int, ...] | None = None
) -> Diagnosis:
    """For one rank, after the job: a forecast takes a while. With links that are `given`, it is of those."""
    begin_s = time.monotonic()
    found, asked = examination.links or given, given or examination.links
    prognosis = None
    if examination.workload is not None and asked is not None:
        prognosis = foresee(examination.workload, asked, settings, servers)
    return Diagnosis(
        ranks=examination.ranks,
        links=found,
        checks=tuple(check_all(examination.ranks, found, settings)),
        prognosis=prognosis,
        took_s=examination.took_s + time.monotonic() - begin_s,
    )


def _together(job: Job) -> tuple[list[Facts], Links]:
    group = job.group
    group.barrier()
    facts = read_facts(job.settings, group.session.member.addresses[job.rank][0])
    ranks = [build(Facts, each) for each in gather(group, "legato/doctor/facts", asdict(facts))]
    return ranks, measure_links(group)


def _slowest(job: Job, profile: Profiler) -> Workload:
    """The profile of the rank that the others would wait for."""
    if job.size == 1:
        return profile()
    job.group.barrier()
    texts = gather(job.group, "legato/doctor/workloads", profile().to_json())
    return max((Workload.from_json(text) for text in texts), key=lambda each: each.compute_s)
