"""A server of an elastic job, from epoch to epoch.

It holds nothing between two epochs, so it has no say in them: it goes wherever the most senior worker that lives calls,
and nobody waits for one that does not come. One that starts later, or was left behind, waits at that worker's post as
any newcomer does, and serves from the next epoch on, whatever ends the last one.
"""

import logging
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from legato.elastic.epoch_member import FAULTS, EpochMember
from legato.elastic.post import LeftBehindError
from legato.errors import InputError, JobError, PeerLostError
from legato.transports.native.session import NativeConfig, Session
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.member import SLICE_S

_log = logging.getLogger(__name__)


class ElasticServer(EpochMember):
    """Joins at construction and serves from then on, in the engine's threads; `wait` goes from epoch to epoch."""

    serves: ClassVar[bool] = True
    max_missed: ClassVar[int] = 3
    """Epochs in a row that may fail to begin with it: it may be the one that the others cannot reach, and they can do
    without it."""

    def __init__(self, config: NativeConfig, members_file: Path | None) -> None:
        if config.member.rank is not None:
            raise InputError(f"rank={config.member.rank}: a server has none")
        self._session: Session
        self._num_missed = 0
        super().__init__(config, members_file)
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(now=True)

    @property
    def session(self) -> Session:
        return self._session

    @property
    def member(self) -> int:
        """Its number in the present epoch."""
        return self._session.player.member

    def wait(self) -> None:
        """Until every worker has left. Raises what ended the job early, and why this server cannot go on."""
        while (error := self._serve()) is not None:
            if not isinstance(error, FAULTS):
                raise error
            _log.warning("epoch %d has ended: %s", self.epoch, error)
            self.end_epoch()
            self._rejoin()
            _log.info("epoch %d: %d workers, member %d", self.epoch, len(self._roll.workers), self.member)

    def _serve(self) -> Exception | None:
        """To the end of the epoch; None where every worker has left."""
        member, engine = self._session.member, self._session.engine
        while not member.wait_until_all_left(SLICE_S):
            if engine.failure is not None:  # the conductor's host may be silent: nobody will say why
                return member.error or self._session.explain(engine.failure)
        return member.error

    def _rejoin(self) -> None:
        """The next epoch, or, where that has begun without it, the one after."""
        try:
            while (called := self._follow(self._muster(at_boundary=True))) is not None:
                if self._reach(called):
                    return
        except LeftBehindError as error:
            if self._members_file is None:
                words = "this server was left behind, and there is no LEGATO_MEMBERS_FILE to find the others by"
                raise PeerLostError(f"{words}: {error}") from None
            _log.warning("this server was left behind: %s", error)
            self._be_taken_in()
            return
        ranks = ", ".join(str(self._roll.rank(each)) for each in self._roll.workers)
        raise PeerLostError(f"no worker of the job can be reached any more: ranks {ranks} are gone")

    def _enter(self, config: NativeConfig, conductor: Conductor | None) -> None:
        try:
            self._session = Session(config, conductor)
        except JobError as error:
            self._num_missed += 1
            if self._num_missed == self.max_missed:
                raise InputError(
                    f"{self._num_missed} epochs in a row did not begin with this server, the last because: {error}"
                ) from None
            raise
        self._num_missed = 0

    def _leave(self, *, now: bool) -> None:
        self._session.close({}, now=now)

    # ---- called from the post's threads ----

    def _takes_newcomers(self) -> bool:
        return False
