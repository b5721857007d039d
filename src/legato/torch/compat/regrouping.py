"""Regrouping: what stands on the group of an elastic job, after its members have changed."""

from legato.job import Job
from legato.torch.compat import process_sets
from legato.torch.compat.optimizer import Gradients


def begin_anew(job: Job) -> None:
    """Have distributed optimizers average among the members that there are now. Process sets are gone: their ranks were
    those of before.

    All ranks call it. Those that join make their optimizers meanwhile, in the same order: names count anew.
    """
    process_sets.forget(job)
    for kept in job.kept:
        if isinstance(kept, Gradients):
            kept.begin_anew()
