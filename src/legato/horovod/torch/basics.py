"""Joining the job as Horovod does, and where this process is among its hosts."""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from legato.errors import InputError, JobError, NotInitializedError
from legato.job import Job
from legato.settings import Settings, read_settings
from legato.torch import api
from legato.torch.compat.process_sets import ProcessSet, add_process_set, is_open
from legato.torch.compat.regrouping import begin_anew


@dataclass(frozen=True, slots=True)
class _Hosts:
    """This process among those with its local rank: one of each host, where there are so many."""

    cross_rank: int
    cross_size: int
    is_homogeneous: bool


_hosts: weakref.WeakKeyDictionary[Job, _Hosts] = weakref.WeakKeyDictionary()


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job that the environment describes, or, with `comm`, one of these ranks of it. All of them call it.

    `process_sets` are opened at once; "dynamic" changes nothing: `add_process_set` is always there.
    """
    job = api.init() if not comm or api.is_initialized() else api.begin(Job(_settings_of(comm)))
    if job not in _hosts:
        _hosts[job] = _find_hosts(job)
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise InputError(f"process_sets is {process_sets!r}; accepted are a list of process sets, or 'dynamic'")
        return
    for each in process_sets or ():
        if not is_open(each):
            add_process_set(each)


def regroup() -> None:
    """Go on with the ranks that are left, and with those that wait to join: what `init` does in the middle of a job."""
    job = api.current()
    while True:
        job.regroup()
        try:
            _hosts[job] = _find_hosts(job)
            begin_anew(job)
        except JobError as error:
            job.membership.check(error)  # one more is lost
        else:
            return


def _settings_of(comm: Sequence[int]) -> Settings:
    """Of a job of some ranks of the one that the environment describes."""
    told = read_settings(os.environ)
    if not isinstance(comm, Sequence) or not all(type(rank) is int for rank in comm):
        raise InputError(f"comm is {comm!r:.80}; accepted is a list of ranks: legato has no MPI")
    ranks = sorted(comm)
    if told.rank not in ranks or len(set(ranks)) < len(ranks) or not 0 <= ranks[0] <= ranks[-1] < told.num_workers:
        raise InputError(f"comm is {comm}; accepted are ranks from 0 to {told.num_workers - 1}, {told.rank} among them")
    if len(ranks) < told.num_workers and told.num_servers:
        raise InputError("comm leaves ranks out, and servers are there for all of them; use process sets")
    if ranks[0] and told.local_size < told.num_workers:
        raise InputError(f"comm begins with rank {ranks[0]}, and only rank 0's host is known; use process sets")
    return replace(
        told,
        rank=ranks.index(told.rank),
        num_workers=len(ranks),
        # Several such jobs can begin at once: each has a port of its own.
        conductor_port=told.conductor_port + ranks[0],
    )


def _find_hosts(job: Job) -> _Hosts:
    mine = (job.settings.local_rank, job.settings.local_size)
    if job.size == 1:
        return _Hosts(0, 1, True)
    everybody = job.group.allgather("legato/horovod/hosts", np.array([mine], np.int64))
    alike = np.flatnonzero(everybody[:, 0] == mine[0]).tolist()
    return _Hosts(alike.index(job.rank), len(alike), bool((everybody[:, 1] == mine[1]).all()))


def _current() -> _Hosts:
    found = _hosts.get(api.current())
    if found is None:
        raise NotInitializedError("the job was joined by legato.torch.init(); call legato.horovod.torch.init()")
    return found


def cross_rank() -> int:
    """Which of the hosts this process runs on, counting those with a process of its local rank."""
    return _current().cross_rank


def cross_size() -> int:
    """How many hosts have a process of this one's local rank."""
    return _current().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    return _current().is_homogeneous
