"""What a training script calls first and last: join the job, leave it; and how its errors come back."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from legato.current import CurrentJob, Member
from legato.errors import LegatoError
from legato.job import Job
from legato.tensorflow.buffers import Slots


class Worker(Member):
    """This process in its job, and the exchanges it has agreed on with the others."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
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
            super().close(now=now)
        finally:
            for slots in self._slots.values():
                slots.close()
            self._slots.clear()
            for action in self._when_closed:
                action()


_current = CurrentJob("legato.tensorflow", Worker)
init, shutdown, is_initialized = _current.init, _current.shutdown, _current.is_initialized
rank, size, local_rank, local_size = _current.rank, _current.size, _current.local_rank, _current.local_size


def current() -> Worker:
    """What `init` has made of this process."""
    return _current.member


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
