"""A server: a member that only sums, until the workers have left."""

from types import TracebackType
from typing import Self

from legato.errors import InputError
from legato.transports.native.session import NativeConfig, Session


class Server:
    """Joins at construction and serves from then on, in the engine's threads."""

    def __init__(self, config: NativeConfig) -> None:
        if config.member.rank is not None:
            raise InputError(f"rank={config.member.rank}: a server has none")
        self._session = Session(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def member(self) -> int:
        """Its number in the job."""
        return self._session.player.member

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until every worker has left: True; False when the time ran out first. Raises what ended the job early."""
        over = self._session.member.wait_until_all_left(timeout_s)
        if self._session.member.error is not None:
            raise self._session.member.error
        return over

    def close(self) -> None:
        """Stop serving. Can be called twice."""
        self._session.close({}, now=True)
