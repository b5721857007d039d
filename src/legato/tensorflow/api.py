"""What a training script calls first and last: join the job, leave it; and how its errors come back."""

import atexit
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from legato.errors import LegatoError
from legato.job import Job, join
from legato.tensorflow.buffers import Slots


class Member:
    """This process in its job, and the exchanges it has agreed on with the others."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._slots: dict[Hashable, Slots] = {}
        self._when_closed: list[Callable[[], None]] = []

    def slots(self, key: Hashable, make: Callable[[], Slots]) -> Slots:
        """The slots by this name; made at its first use, when all ranks agree on them."""
        if key not in self._slots:
            self._slots[key] = make()
        return self._slots[key]

    def when_closed(self, action: Callable[[], None]) -> None:
        """Call this when the job is over, however it ends."""
        self._when_closed.append(action)

    def check(self) -> None:
        """Raise the job's error, if it has failed."""
        for slots in self._slots.values():
            slots.check()

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """An operation that fails because the job has failed raises the job's error."""
        try:
            yield
        except LegatoError as error:
            error.ag_pass_through = True  # type: ignore[attr-defined] # autograph would make a StagingError of it
            raise
        except tf.errors.OpError as error:
            try:
                self.check()
            except LegatoError as why:
                raise why from error
            raise

    def close(self, *, now: bool) -> None:
        try:
            self.job.close(now=now)
        finally:
            for slots in self._slots.values():
                slots.close()
            self._slots.clear()
            for action in self._when_closed:
                action()


_current: list[Member] = []
"""What `init` started last."""


def init(*, rank: int | None = None, num_workers: int | None = None, conductor: str | None = None) -> Job:
    """Join the job that the environment describes (torchrun, mpirun, srun, horovodrun, BytePS), or stand alone.

    What is given here wins over the environment (docs/environment.md). Calling it again returns the same job.
    """
    if _current:
        return _current[-1].job
    job = join(rank=rank, num_workers=num_workers, conductor=conductor)
    _current.append(Member(job))
    atexit.register(_shutdown_at_exit)
    return job


def shutdown(*, now: bool = False) -> None:
    """Apply the last step and leave the job; with `now`, only leave. `init` can be called again afterwards."""
    atexit.unregister(_shutdown_at_exit)
    if _current:
        _current.pop().close(now=now)


def _shutdown_at_exit() -> None:
    """A script that ends by an exception does not wait for a step that the others may never finish."""
    shutdown(now=hasattr(sys, "last_value"))


def is_initialized() -> bool:
    return bool(_current)


def current() -> Member:
    """What `init` has made of this process."""
    if not _current:
        raise LegatoError("legato is not initialised; call legato.tensorflow.init() first")
    return _current[-1]


def rank() -> int:
    return current().job.rank


def size() -> int:
    return current().job.size


def local_rank() -> int:
    return current().job.settings.local_rank


def local_size() -> int:
    return current().job.settings.local_size


def check() -> None:
    """Raise the job's error (`PeerLostError`, `DeadlineError` …), if it has failed.

    A function of TensorFlow that you call yourself fails with TensorFlow's own AbortedError.
    """
    current().check()


@contextmanager
def typed_errors() -> Iterator[None]:
    """In here, a function of TensorFlow that fails because the job has failed raises the job's error instead."""
    with current().typed_errors():
        yield
