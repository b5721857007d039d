"""Joining: ranks that are out of data answer the others until everybody is.

What the others must come to is the next round of each distributed optimizer. A joined rank takes part in those with
zeros, and every round says whether anybody still trains; the rounds of different optimizers come in an order that only
the others know, hence a thread for each. Of sums that scripts start by themselves it is told (`JoinedRanks`).
"""

import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from legato.errors import InputError, LegatoError
from legato.job import Job
from legato.torch import api
from legato.torch.compat.operations import operations
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
    """This rank is out of data: take part in the others' sums with nothing until all have joined.

    Returns the rank that joined last. Optimizer steps and allreduces of the others go on; they get an error where they
    wait for anything else.
    """
    del device  # Horovod's zeros lie on it
    job = api.current()
    if job.size == 1:
        return 0
    if job.settings.staleness:
        raise InputError("join is for synchronous training: a rank that trains asynchronously just calls shutdown()")
    reducers, everybody = _reducers.get(job, []), operations(job)
    assert everybody.joined is not None
    everybody.joined.enter(job.settings.timeout_s)
    with ThreadPoolExecutor(max(len(reducers), 1), thread_name_prefix="legato-join") as threads:
        rounds = [threads.submit(_answer, reducer) for reducer in reducers]

        def check() -> None:
            for each in rounds:
                if each.done():
                    each.result()

        # Where there are rounds, they have deadlines of their own.
        last = everybody.answer_all(check, None if reducers else job.settings.timeout_s)
        for each in rounds:
            each.result()
    return last


def _answer(reducer: Reducer) -> None:
    """Answer rounds until one in which nobody trains."""
    if reducer.in_flight:
        reducer.finish()  # a backward pass without its step: the others wait for the rest of it
    while reducer.answer():
        pass


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
