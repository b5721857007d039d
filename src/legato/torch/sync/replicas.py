"""Replicas: the ranks of a job that hold the same part of every tensor, one on each host, as a group of their own.

host 0    rank 0: part 0    rank 1: part 1
host 1    rank 2: part 0    rank 3: part 1
                  │                 │
             one group         another one      each averages its part over the hosts
"""

import logging
from collections.abc import Sequence

from legato.errors import JobError
from legato.job import Job
from legato.transports.declaration import Declaration
from legato.transports.native.subgroup import open_subgroup

_log = logging.getLogger(__name__)


class Replicas:
    """The groups of one division of a job's ranks into hosts; `group` is this rank's."""

    def __init__(self, job: Job, hosts: Sequence[Sequence[int]]) -> None:
        """Every rank of the job makes it, with the same hosts: ranks in the order of their parts."""
        self.hosts = hosts
        name = job.name("replicas")
        for place, ranks in enumerate(zip(*hosts, strict=True)):
            group = open_subgroup(job.group, f"{name}/{place}", sorted(ranks))
            if group is not None:
                self.group, self.ranks = group, sorted(ranks)
                _log.info("shards of rank %d are averaged by ranks %s: ranks 0 on of their group", job.rank, self.ranks)
        parent = job.group

        def absence(_: Declaration, __: int) -> JobError | None:
            """A rank of another group is lost: its neighbours here will not bring their parts."""
            error = parent.session.error
            return error if isinstance(error, JobError) else None

        self.group.session.member.also_absent(absence)

    def renumbered(self, error: JobError) -> JobError:
        """An error of the group, with the rank as the job numbers it."""
        if error.rank is None:
            return error
        rank = self.ranks[error.rank]
        text = f"{error} (rank {error.rank} of the group of ranks {', '.join(map(str, self.ranks))} is rank {rank})"
        return type(error)(text, rank=rank, tensor=error.tensor, step=error.step)

    def remove(self) -> None:
        """With the job."""
        self.group.close()


def replicas_of(job: Job, hosts: Sequence[Sequence[int]]) -> Replicas:
    """Made once for the same hosts, of which there are at least two."""
    for kept in job.kept:
        if isinstance(kept, Replicas) and kept.hosts == hosts:
            return kept
    made = Replicas(job, hosts)
    job.keep(made)
    return made
