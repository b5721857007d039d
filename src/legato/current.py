"""The current job: what a framework's functions mean when they are given none."""

import atexit
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from legato.errors import NotInitializedError
from legato.job import Job, join


class Member:
    """This process in its job. A framework's own adds what it has agreed on with the others."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def close(self, *, now: bool) -> None:
        """Leave; with `now`, without waiting for what is under way."""
        self.job.close(now=now)


AnyMember = TypeVar("AnyMember", bound=Member)


class CurrentJob(Generic[AnyMember]):
    """A framework's job of this process, from `init` to `shutdown` or to the end of the script."""

    def __init__(self, framework: str, enter: Callable[[Job], AnyMember]) -> None:
        """`framework` is the module whose `init` is this one."""
        self._framework = framework
        self._enter = enter
        self._member: AnyMember | None = None

    @property
    def member(self) -> AnyMember:
        if self._member is None:
            raise NotInitializedError(f"legato is not initialised; call {self._framework}.init() first")
        return self._member

    def begin(self, job: Job) -> Job:
        """Make a job the current one."""
        self._member = self._enter(job)
        atexit.register(self._shutdown_at_exit)
        return job

    def init(self, *, rank: int | None = None, num_workers: int | None = None, conductor: str | None = None) -> Job:
        """Join the job that the environment describes (torchrun, mpirun, srun, horovodrun, BytePS), or stand alone.

        What is given here wins over the environment (docs/environment.md). Calling it again returns the same job.
        """
        if self._member is not None:
            return self._member.job
        return self.begin(join(rank=rank, num_workers=num_workers, conductor=conductor))

    def shutdown(self, *, now: bool = False) -> None:
        """Finish what is under way and leave the job; with `now`, only leave. `init` can be called again afterwards."""
        atexit.unregister(self._shutdown_at_exit)
        member, self._member = self._member, None
        if member is not None:
            member.close(now=now)

    def _shutdown_at_exit(self) -> None:
        """A script that ends by an exception does not wait for a step that the others may never finish.

        `sys.exit` cannot be told from the script's end here. Whoever exits early leaves as if it had finished, and the
        others hear of it when they wait for a step that it has not begun.
        """
        self.shutdown(now=hasattr(sys, "last_value"))

    def is_initialized(self) -> bool:
        """Whether `init` has been called, and `shutdown` not since."""
        return self._member is not None

    def rank(self) -> int:
        """This worker's number, from 0."""
        return self.member.job.rank

    def size(self) -> int:
        """The number of workers."""
        return self.member.job.size

    def local_rank(self) -> int:
        """This worker's number among those of its host."""
        return self.member.job.settings.local_rank

    def local_size(self) -> int:
        """The number of workers on this host."""
        return self.member.job.settings.local_size
