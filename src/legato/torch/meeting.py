"""Where the ranks of a timeline meet when gradients go over torch.distributed."""

from legato.job import Job
from legato.observe import Timeline
from legato.torch.process_group import ProcessGroup


class _Meeting:
    """Ranks that meet for the timeline over connections of its own, since a schedule closes those that it uses."""

    def __init__(self, timeline: Timeline, timeout_s: float) -> None:
        self._timeline = timeline
        self._group = ProcessGroup(timeout_s)
        timeline.meet(self._group)

    def remove(self) -> None:
        self._timeline.stop()
        self._timeline.leave()
        self._group.close()


def meet_over_process_group(job: Job) -> None:
    """Where there is no native group, a timeline's ranks meet over torch.distributed."""
    if job.timeline.on and not job.timeline.has_met:
        job.keep(_Meeting(job.timeline, job.settings.timeout_s))
