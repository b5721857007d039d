"""A watch over tensors that native code has started: it does not wait for them, so nobody else would notice."""

import threading
from collections.abc import Sequence

from legato._native import Collector
from legato.errors import JobError, LegatoError
from legato.transports.native.channel import Channel
from legato.transports.native.session import Session

_PERIOD_S = 0.5
"""How often it looks: the same slices in which a thread that waits hears that a rank has left."""


class Watch:
    """Ends the job with the error that a waiting thread would have raised: a rank has left, or something is late."""

    def __init__(self, session: Session, collector: Collector, channels: Sequence[Channel]) -> None:
        self._session = session
        self._collector = collector
        self._channels = channels
        self.error: LegatoError | None = None
        """What it has ended the job with."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="legato-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(_PERIOD_S):
            if self._session.closed:
                return
            error = self._trouble()
            if error is not None:
                self.error = error
                self._collector.set_reason(str(error))
                # Only an engine that has stopped leaves alone the memory of what has failed.
                self._session.player.close()
                return

    def _trouble(self) -> JobError | None:
        for place, step, _ in self._collector.overdue(_PERIOD_S):
            absence = self._channels[place].absence(step)
            if absence is not None:
                return absence
        for place, step, missing in self._collector.overdue(self._channels[0].timeout_s):
            return self._channels[place].lateness(step, self._channels[place].timeout_s, missing)
        return None
