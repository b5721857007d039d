"""Process sets: some ranks of the job, whose collectives wait for nobody else. In Horovod's interface.

Each is a group of its own (`legato.transports.native.subgroup`), and counts its names by itself: ranks that are not in
it know nothing of what it does.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from legato.errors import InputError
from legato.job import Job
from legato.torch import api
from legato.torch.compat.operations import Operations, operations
from legato.transports.native.group import NativeGroup
from legato.transports.native.subgroup import check_members, open_subgroup


class ProcessSet:
    """Ranks that run collectives together, once it has been given to `init` or `add_process_set`."""

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        if not isinstance(ranks_or_comm, Sequence) or not all(type(rank) is int for rank in ranks_or_comm):
            raise InputError(f"a process set of {ranks_or_comm!r:.80}; accepted is a list of ranks")
        self.ranks: list[int] | None = sorted(ranks_or_comm)

    def included(self) -> bool | None:
        """Whether this process is one of them; None where the set has been removed."""
        return None if self.ranks is None else api.rank() in self.ranks

    def rank(self) -> int | None:
        """This process's place in the set."""
        if self.ranks is None:
            return None
        _check_included(self)
        return self.ranks.index(api.rank())

    def size(self) -> int | None:
        return None if self.ranks is None else len(self.ranks)

    def invalidate(self) -> None:
        """It has been removed."""
        self.process_set_id = self.ranks = None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job that `init` has started."""

    def __init__(self) -> None:
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]
        return list(range(api.size())) if api.is_initialized() else []


global_process_set: ProcessSet = _GlobalProcessSet()


class _Sets:
    """The process sets of one job."""

    def __init__(self) -> None:
        self._num_opened = itertools.count(1)
        self.opened: dict[int, tuple[ProcessSet, NativeGroup | None, Operations | None]] = {}

    def open(self, job: Job, added: ProcessSet) -> None:
        ranks = added.ranks or []
        check_members(ranks, job.size)
        alike = [known.process_set_id for known, _, _ in self.opened.values() if known.ranks == ranks]
        if alike or ranks == list(range(job.size)):
            raise InputError(
                f"a process set of ranks {ranks} is there already, with the number {alike[0] if alike else 0}"
            )
        number = next(self._num_opened)
        group = open_subgroup(job.group, f"legato/process set {number}", ranks)
        collectives = Operations(group, job.rank, ranks, is_whole=False) if job.rank in ranks else None
        self.opened[number] = added, group, collectives
        added.process_set_id = number

    def close(self, removed: ProcessSet) -> bool:
        number = removed.process_set_id
        if number is None or number not in self.opened:
            return False
        known, group, _ = self.opened.pop(number)
        if group is not None:
            group.close()
        known.invalidate()
        removed.invalidate()
        return True


_of_job: weakref.WeakKeyDictionary[Job, _Sets] = weakref.WeakKeyDictionary()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a set of ranks usable; every rank of the job calls it, those outside of the set as well."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    job = api.current()
    _of_job.setdefault(job, _Sets()).open(job, added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Give up a set, on all ranks; False where there is no such set, and for that of all ranks."""
    return _of_job.setdefault(api.current(), _Sets()).close(process_set)


def forget(job: Job) -> None:
    """Its members have changed: ranks have other meanings, and the sets' groups are gone."""
    sets = _of_job.pop(job, _Sets())
    for known, _, _ in sets.opened.values():
        known.invalidate()


def is_open(process_set: ProcessSet) -> bool:
    """Whether it is one of this job's; a set of a job that has ended is not."""
    number = process_set.process_set_id
    known = _of_job.setdefault(api.current(), _Sets()).opened.get(number) if number else None
    return number == 0 or (known is not None and known[0].ranks == process_set.ranks)


def operations_of(process_set: ProcessSet) -> Operations:
    """What this rank starts among the members of a set; an InputError where it is not one of them."""
    if process_set.process_set_id == 0:
        return operations()
    if process_set.process_set_id is None or not is_open(process_set):
        raise InputError(f"{process_set} is not known here; give it to init(process_sets=) or add_process_set first")
    _check_included(process_set)
    _, _, collectives = _of_job[api.current()].opened[process_set.process_set_id]
    assert collectives is not None
    return collectives


def _check_included(process_set: ProcessSet) -> None:
    if not process_set.included():
        raise InputError(f"rank {api.rank()} is not a member of {process_set}: only its members may use it")
