"""What a script in BytePS's style calls first and last: join the job, leave it; and how its errors come back."""

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import mxnet as mx

from legato.current import CurrentJob, Member
from legato.errors import InputError, LegatoError
from legato.job import Job
from legato.mxnet.buffers import Slots
from legato.settings import read_settings


class Worker(Member):
    """This process in its job, and the exchanges that it has agreed on with the others."""

    def __init__(self, job: Job) -> None:
        if job.settings.staleness:
            raise InputError(
                f"asynchronous training (staleness {job.settings.staleness}) is not for MXNet; "
                "unset LEGATO_STALENESS and BYTEPS_ENABLE_ASYNC"
            )
        super().__init__(job)
        self.declared: dict[str, dict[str, Any] | None] = {}
        """Compression parameters by the names of arrays."""
        self._slots: dict[Hashable, Slots] = {}

    def slots(self, key: Hashable, make: Callable[[], Slots]) -> Slots:
        """The slots by this name; made at its first use, when all ranks agree on them."""
        if key not in self._slots:
            self._slots[key] = make()
        return self._slots[key]

    def check(self) -> None:
        """Raise the job's error, if it has failed."""
        for slots in self._slots.values():
            slots.check()

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """Whoever waits for an array that never came because the job has failed has the job's error raised."""
        try:
            yield
        except mx.MXNetError as error:
            try:
                self.check()
            except LegatoError as why:
                raise why from error
            raise

    def close(self, *, now: bool) -> None:
        try:
            if not now:
                with self.typed_errors():
                    mx.nd.waitall()
        except BaseException:
            now = True
            raise
        finally:
            super().close(now=now)
            # What was under way has failed by now, and what waits on MXNet's engine fails when it begins.
            with suppress(mx.MXNetError):
                mx.nd.waitall()
            for slots in self._slots.values():
                slots.close()


# What it registers to be done at exit comes before MXNet's own, which would wait for what nobody finishes any more.
_current = CurrentJob("legato.mxnet", Worker)
init, shutdown, is_initialized = _current.init, _current.shutdown, _current.is_initialized
rank, size, local_rank, local_size = _current.rank, _current.size, _current.local_rank, _current.local_size


def current() -> Worker:
    """What `init` has made of this process."""
    return _current.member


def suspend() -> None:
    """Leave the job, to come back with `resume`. A trainer or an optimizer is made anew afterwards."""
    shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> None:
    """Join a job of another size, as the given rank or the one of the environment."""
    settings = read_settings(os.environ)
    if num_servers != settings.num_servers:
        raise InputError(f"num_servers is {num_servers}, but LEGATO_SERVERS says {settings.num_servers}; set it first")
    init(rank=settings.rank if global_rank < 0 else global_rank, num_workers=num_workers)


def check() -> None:
    """Raise the job's error (`PeerLostError`, `DeadlineError` …), if it has failed.

    An array that never came raises MXNet's own MXNetError where you read it.
    """
    current().check()


@contextmanager
def typed_errors() -> Iterator[None]:
    """In here, reading an array that never came because the job has failed raises the job's error instead."""
    with current().typed_errors():
        yield
