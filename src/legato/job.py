"""The job: the composition root, and the only place that knows all the parts."""

import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from legato.elastic.membership import Change, Membership
from legato.errors import ClosedError, InputError
from legato.live import Monitor
from legato.live.gantt import gantt
from legato.observe import Timeline
from legato.settings import Role, Settings, read_settings
from legato.transports.native.group import NativeGroup

_log = logging.getLogger(__name__)


class Closable(Protocol):
    def remove(self) -> None:
        """Finish what is under way and let go."""


@runtime_checkable
class Attached(Closable, Protocol):
    """What has put itself between a model and its optimizer."""

    def let_go(self) -> None:
        """Finish nothing: refuse to train on, and take off hooks of parameters. The garbage collector cannot see these,
        and a model would live as long as its process."""


class Job:
    """This process among the workers of one training job. Several jobs can live in one process."""

    def __init__(self, settings: Settings) -> None:
        if settings.role is Role.SERVER:
            raise ValueError("a server has no job to train: run it with `legato server`")
        assert settings.rank is not None
        self.settings = settings
        self.rank = settings.rank
        self.size = settings.num_workers
        self._group: NativeGroup | None = None
        self._membership: Membership | None = None
        self._listeners: list[Callable[[Change], None]] = []
        self._closed = False
        self._schedules: list[Closable] = []
        self._num_names = 0
        self.timeline = Timeline(self.rank, self.size)
        """What happens when, in one picture of all ranks; off unless somebody starts it."""
        if settings.timeline is not None:
            self.timeline.start(settings.timeline)
        self.monitor: Monitor | None = None
        """What is told of training while it runs; None unless somebody asks for it."""
        if settings.live is not None:
            self.monitor = Monitor(settings.live, self.rank, self.size)
            self.monitor.gantt = lambda: gantt(self.timeline.latest())

    @property
    def group(self) -> NativeGroup:
        """What moves tensors between the workers; there is none in a job of one.

        Made at its first use: a job whose gradients go over the user's process group needs none.
        """
        if self.size == 1 or self._closed:
            raise ClosedError("this job has one worker, or has been closed: there is nobody to talk to")
        if self.settings.elastic is not None:
            return self.membership.group
        if self._group is None:
            self._group = NativeGroup(self.settings.native())
            self.timeline.follow(self._group)
            if self.monitor is not None:
                self.monitor.follow(self._group)
        return self._group

    @property
    def is_elastic(self) -> bool:
        """Whether its workers may come and go."""
        return self.settings.elastic is not None

    @property
    def membership(self) -> Membership:
        """Of an elastic job: who is in it. Made at its first use, as the group is; rank and size are known then."""
        minimum = self.settings.elastic
        if minimum is None:
            raise InputError("this job is not elastic: set LEGATO_ELASTIC, or start it by legato run --min")
        if self._membership is None:
            self._membership = Membership(self.settings.native(), minimum, self.settings.members_file)
            self.rank, self.size = self._membership.rank, self._membership.size
            self.timeline.follow(self._membership.group)
        return self._membership

    def on_membership(self, listener: Callable[[Change], None]) -> None:
        """Have it called after every change of an elastic job's workers, between two steps."""
        self._listeners.append(listener)

    def follow(self, change: Change) -> None:
        """The workers of the job have changed."""
        self.rank, self.size = change.rank, change.size
        for listener in self._listeners:
            listener(change)

    def regroup(self) -> None:
        """Form the next epoch of an elastic job with everybody who lives, and with newcomers. Nothing is under way."""
        membership = self.membership
        membership.end_epoch()
        change, _ = membership.regroup(at_boundary=True)
        self.follow(change)

    def name(self, kind: str) -> str:
        """A name that every rank gives to the same thing, as long as all do the same things in the same order."""
        self._num_names += 1
        return f"{kind}.{self._num_names}"

    @property
    def kept(self) -> tuple[Closable, ...]:
        """What ends with the job."""
        return tuple(self._schedules)

    def keep(self, schedule: Closable) -> None:
        """Finish this schedule before the job ends."""
        self._schedules.append(schedule)

    def forget(self, schedule: Closable) -> None:
        self._schedules.remove(schedule)

    def close(self, *, now: bool = False) -> None:
        """Apply the last step everywhere, then leave; with `now`, only leave. Can be called twice."""
        schedules, self._schedules = self._schedules, []
        try:
            for schedule in reversed(schedules):  # what came later may stand on what came before
                if not now:
                    schedule.remove()
                elif isinstance(schedule, Attached):
                    schedule.let_go()
        except BaseException:
            now = True
            raise
        finally:
            self._closed = True
            if self.monitor is not None:
                self.monitor.close(failed=now)
            self.timeline.stop(together=not now)
            self.timeline.leave()
            group, self._group = self._group, None
            if group is not None:
                group.close(now=now)
            membership, self._membership = self._membership, None
            if membership is not None:
                membership.close(now=now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(now=error is not None)


def join(*, rank: int | None = None, num_workers: int | None = None, conductor: str | None = None) -> Job:
    """The job that the environment describes, or one of this process alone; what is given here wins over it."""
    return job_of(read_settings(os.environ, rank=rank, num_workers=num_workers, conductor=conductor))


def job_of(settings: Settings) -> Job:
    """It logs who this process is and who said so, so that nobody trains alone without a word."""
    announce(settings)
    job = Job(settings)
    _log.info("rank %d of %d, told by %s", job.rank, job.size, settings.told_by)
    if settings.overlooked:
        names = ", ".join(settings.overlooked)
        _log.warning("this process trains alone, although a launcher seems to have set %s: where is its rank?", names)
    return job


def announce(settings: Settings) -> None:
    """Show the log from the level that was asked for, and name in it, once a process, what acts under another name and
    what is set and does nothing."""
    if settings.log_level is not None:
        logger = logging.getLogger("legato")
        logger.setLevel(settings.log_level)
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler())
    warnings = (*settings.translated, *settings.without_effect)
    for level, lines in ((logging.WARNING, warnings), (logging.INFO, settings.set_by_launcher)):
        for line in sorted(set(lines) - _said):
            _log.log(level, line)
        _said.update(lines)


_said: set[str] = set()
"""What one line in the log is enough for, however many jobs this process joins."""
