"""The timeline of a training script, by Horovod's names (docs/timeline.md)."""

from pathlib import Path

import torch.distributed as dist

from legato.job import Job
from legato.observe import TimelineConfig
from legato.observe.notes import LAST_STEP
from legato.torch import api
from legato.torch.scheduling.hooks import Schedule
from legato.torch.sync.process_group import meet_over_process_group


def start_timeline(
    file_path: str | Path,
    mark_cycles: bool = False,
    *,
    first_step: int = 0,
    last_step: int = LAST_STEP,
    job: Job | None = None,
) -> None:
    """Note what happens when, from now on; every rank calls it.

    A timeline that is on already is finished first. `mark_cycles` is Horovod's: there are no cycles here.
    """
    del mark_cycles
    job = api.current(job)
    job.timeline.start(TimelineConfig(path=Path(file_path), first_step=first_step, last_step=last_step))
    if job.size > 1 and not job.timeline.has_met and dist.is_available() and dist.is_initialized():
        meet_over_process_group(job)
    _tell_schedules(job)


def stop_timeline(*, job: Job | None = None) -> None:
    """Have rank 0 write the file; every rank calls it. Leaving the job does the same."""
    job = api.current(job)
    job.timeline.stop()
    _tell_schedules(job)


def _tell_schedules(job: Job) -> None:
    for each in job.kept:
        if isinstance(each, Schedule):
            each.note()
