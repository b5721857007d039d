"""Joining: ranks that are out of data answer the others' rounds until everybody is.

A joined rank cannot hear what the others start, but it knows what they must come to: the next round of each of its
distributed optimizers. So it takes part in those with zeros, and every round says whether anybody still trains. The
rounds of different optimizers come in an order that only the others know, hence a thread for each.
"""

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from legato.errors import InputError
from legato.job import Job
from legato.torch import api
from legato.torch.compat.reducer import Reducer

_reducers: weakref.WeakKeyDictionary[Job, list[Reducer]] = weakref.WeakKeyDictionary()
"""The rounds that a joined rank answers, by job."""


def take_part(job: Job, reducer: Reducer) -> None:
    """Have `join` answer this reducer's rounds."""
    _reducers.setdefault(job, []).append(reducer)


def leave(job: Job, reducer: Reducer) -> None:
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
