"""A watch over tensors that native code has started: it does not wait for them, so nobody else would notice."""

import threading
from collections.abc import Sequence

from legato._native import Collector
from legato.errors import JobError, LegatoError
from legato.transports.native.channel import Channel
from legato.transports.native.session import Session
from legato.transports.rendezvous.member import SLICE_S, Patience


class Watch:
    """Ends the job with the error that a waiting thread would have raised: a rank has left, or something is late."""

    def __init__(self, session: Session, collector: Collector, channels: Sequence[Channel]) -> None:
        self._session = session
        self._collector = collector
        self._channels = channels
        self.error: LegatoError | None = None
        """What it has ended the job with."""
        self._awaited: tuple[int, int] | None = None
        self._patience: Patience | None = None
        """With what it waits for: a place, and its step."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="legato-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(SLICE_S):
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
        late = self._collector.overdue(SLICE_S)
        for place, step, _ in late:
            absence = self._channels[place].absence(step)
            if absence is not None:
                return self._channels[place].blame(absence)
        for place, step, missing in self._collector.overdue(self._channels[0].timeout_s):
            return self._channels[place].overdue(step, self._channels[place].timeout_s, missing)
        self._be_patient(late)
        return None

    def _be_patient(self, late: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """For the first of those that are late, as a thread would that waits for it."""
        first = late[0] if late else None
        now = None if first is None else first[:2]
        if now != self._awaited:
            if self._patience is not None:
                self._patience.end()
            self._awaited = now
            self._patience = None if now is None else self._channels[now[0]].patience(now[1])
        if first is not None and self._patience is not None:
            self._patience.look(first[2])
