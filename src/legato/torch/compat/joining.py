"""Joining: ranks that are out of data answer the others' rounds until everybody is.

A joined rank cannot hear what the others start, but it knows what they must come to: the next round of each of its
distributed optimizers. So it takes part in those with zeros, and every round says whether anybody still trains. The
rounds of different optimizers come in an order that only the others know, hence a thread for each.
"""

import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from legato.errors import InputError, LegatoError
from legato.job import Job
from legato.torch import api
from legato.torch.compat.reducer import Reducer
from legato.transports.native.group import NativeGroup

_reducers: weakref.WeakKeyDictionary[Job, list[Reducer]] = weakref.WeakKeyDictionary()
"""The rounds that a joined rank answers, by job."""


def take_part(job: Job, reducer: Reducer) -> None:
    """Have `join` answer this reducer's rounds."""
    _reducers.setdefault(job, []).append(reducer)


def leave(job: Job, reducer: Reducer) -> None:
    if reducer in _reducers.get(job, []):
        _reducers[job].remove(reducer)


def join(device: int = -1) -> int:
    """This rank is out of data: give zeros to the others' optimizer steps until all have joined.

    Returns the rank that joined last; of several, the highest. Only the gradients of `DistributedOptimizer` are
    answered: any other collective that the others start waits for this rank, until its deadline.
    """
    del device  # Horovod's zeros lie on it
    job = api.current()
    if job.size == 1:
        return 0
    if job.settings.staleness:
        raise InputError("join is for synchronous training: a rank that trains asynchronously just calls shutdown()")
    reducers = _reducers.get(job, [])
    answered = np.zeros(job.size, np.int64)
    if reducers:
        with ThreadPoolExecutor(len(reducers), thread_name_prefix="legato-join") as threads:
            answered[job.rank] = sum(threads.map(_answer, reducers))
    job.group.push_pull("legato/joined", answered)
    return int(job.size - 1 - answered[::-1].argmin())


def _answer(reducer: Reducer) -> int:
    """Answer rounds until one in which nobody trains; how many there were before."""
    if reducer.in_flight:
        reducer.finish()  # a backward pass without its step: the others wait for the rest of it
    num_rounds = 0
    while reducer.answer():
        num_rounds += 1
    return num_rounds


class EarlyEndError(LegatoError, RuntimeError):
    """A rank has no data left while others have, and the user asked to be told."""


@dataclass(frozen=True, slots=True)
class Present:
    """The ranks that are about to compute, and what they are about to need from the others."""

    ranks: tuple[int, ...]
    syncs: bool = False
    """Gradients will be averaged."""
    refreshes: bool = False
    """Buffers are broadcast first."""

    @property
    def first(self) -> int:
        return self.ranks[0]


class Attendance:
    """One pass over uneven data: every rank reports before each forward pass, and the others' passes once it is out."""

    def __init__(self, group: NativeGroup, name: str, *, divide_by_present: bool, throw: bool) -> None:
        self._group = group
        self._name = name
        self.divide_by_present = divide_by_present
        self._throw = throw
        self.last = group.size - 1
        """Who computed last, as far as this rank has heard; of several, the highest."""

    def report(self, *, absent: bool = False, syncs: bool = False, refreshes: bool = False) -> Present:
        """Say what this rank is about to do; who else does something."""
        size = self._group.size
        table = np.zeros(size + 2, np.int32)
        if not absent:
            table[self._group.rank], table[size], table[size + 1] = 1, syncs, refreshes
        self._group.push_pull(self._name, table)
        present = Present(tuple(np.flatnonzero(table[:size]).tolist()), bool(table[size]), bool(table[size + 1]))
        self.last = max(present.ranks, default=self.last)
        if self._throw and 0 < len(present.ranks) < size:
            out = sorted(set(range(size)) - set(present.ranks))
            raise EarlyEndError(f"ranks {', '.join(map(str, out))} have no data left, others have")
        return present
