"""A session: one member of a native job, from joining to leaving."""

import contextlib
import logging
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from legato import __version__
from legato._native import Engine, Failure
from legato.errors import ClosedError, InputError, JobError, LegatoError, MismatchError, PeerLostError
from legato.transports.native.handle import translate
from legato.transports.native.player import EngineConfig, NativePlayer
from legato.transports.rendezvous import forks, limits
from legato.transports.rendezvous.conductor import Conductor
from legato.transports.rendezvous.member import Member, MemberConfig

_REASON_S = 1.0
"""How long the conductor's reason for a lost peer may take; mostly it is there already."""

_log = logging.getLogger(__name__)

PARTITION_BYTES = 256 << 10
"""Of tensors that nobody cuts otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConfig:
    """Everything a member of a native job needs to know."""

    member: MemberConfig
    """Who it is and where the others are."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """How it moves bytes."""
    partition_bytes: int | None = PARTITION_BYTES
    """Largest part until a plan says otherwise; equal on all members. None sends tensors whole."""
    credit_bytes: int | None = None
    """Bytes in flight until a plan says otherwise; equal on all members. None is no limit."""
    is_elastic: bool = False
    """Whether members may come and go (legato.elastic); equal on all of them."""

    def __post_init__(self) -> None:
        if self.engine.is_protected and self.member.join.key is None and self.member.join.insecure:
            raise InputError(
                f"LEGATO_WIRE is {self.engine.wire!r}, which needs a key: set LEGATO_KEY or LEGATO_KEY_FILE to the "
                "same secret on every member, and not LEGATO_INSECURE"
            )
        for name, value in (("partition_bytes", self.partition_bytes), ("credit_bytes", self.credit_bytes)):
            if value is not None and value < 1:
                raise InputError(f"{name}={value} must be at least 1, or None for no limit")

    def common(self) -> tuple[tuple[str, str], ...]:
        """What must be equal on all members."""
        deployment = self.member.deployment
        values = {
            "legato's version": __version__,
            "the number of workers": deployment.num_workers,
            "the number of servers": deployment.num_servers,
            "whether workers serve": deployment.workers_serve,
            "the number of learners": deployment.num_learners,
            "whether the job is elastic": self.is_elastic,
            "num_connections": self.member.num_connections,
            "LEGATO_WIRE": self.engine.wire,
            "partition_bytes": self.partition_bytes,
            "credit_bytes": self.credit_bytes,
        }
        return tuple((name, str(value)) for name, value in values.items())


class Session:
    """Joins at construction, with the conductor beside rank 0, made here or given; `close` leaves."""

    def __init__(self, config: NativeConfig, conductor: Conductor | None = None) -> None:
        self.config = config
        deployment = config.member.deployment
        self.player = NativePlayer(
            config.engine, deployment, partition_bytes=config.partition_bytes, credit_bytes=config.credit_bytes
        )
        self.closed = False
        """Set by `close`, and in a child of this process: the job is its parent's."""
        self._inherited = False
        self._cause: JobError | None = None
        """What has ended a wait of this rank's, should it go because of that."""
        forks.in_children(self._leave_to_parent)
        self._conductor = conductor
        with limits.named():
            if conductor is None and config.member.rank == 0:
                self._conductor = Conductor(config.member, config.common())
            try:
                self.member = Member(config.member, config.common(), self.player)
            except MismatchError:
                # Whoever is still on the way shall hear it too, not find nobody here.
                if self._conductor is not None:
                    self._conductor.wait(config.member.join_timeout_s)
                self._end_engine_and_conductor()
                raise
            except BaseException:
                self._end_engine_and_conductor()
                raise

    @property
    def engine(self) -> Engine:
        assert self.player.engine is not None
        return self.player.engine

    def close(self, steps: Mapping[str, int], *, now: bool = False) -> None:
        """Leave the job; `steps` are the last ones begun here, by name.

        Waits until everybody leaves, since others may still read sums from here; not with `now`.
        """
        if self.closed:
            return
        failure = self.engine.failure
        cause = self._cause
        if cause is None and failure is not None and failure.kind != "closed":
            cause = self._explain(failure)
        self.closed = True
        timeout_s = self.config.member.timeout_s
        try:
            if cause is not None and (now or failure is not None) and self.member.error is None:
                self.member.give_up(cause, _REASON_S)
            elif not now and self.member.error is None and failure is None:
                self.member.leave(steps, timeout_s)
        except JobError as error:
            _log.info("left without a goodbye: %s", error)
        finally:
            self.player.close()
            self.member.close()
            self._end_engine_and_conductor()

    def blame(self, error: JobError) -> JobError:
        """An error for the user. The first one is what the others hear if this rank goes without another word: they
        would take its going for the cause."""
        self._cause = self._cause or copy(error)  # not the one that will be raised: see `Member.error`
        return error

    def end(self, error: JobError) -> JobError:
        """End the job for everybody, and what for: the conductor may know better who is to blame."""
        if self.member.error is None and not self.closed:
            with contextlib.suppress(JobError):
                self.member.give_up(error, _REASON_S)
        known = self.member.error
        return self.blame(known if isinstance(known, JobError) and not self.closed else error)

    def check_open(self) -> None:
        """ClosedError once it is closed, and in a child of the process that joined."""
        if self._inherited:
            raise ClosedError("the group belongs to the process that joined the job, and this is a child of it")
        if self.closed:
            raise ClosedError("the group is closed; make a new one to go on")

    @property
    def error(self) -> LegatoError | None:
        """What has ended the job, if something has. Not to be read from the member's thread."""
        failure = self.engine.failure
        return self.member.error if failure is None else self.explain(failure)

    def explain(self, failure: Failure) -> JobError:
        """A failure of the engine, in terms of ranks, names and steps, or the reason that the conductor gives for it.

        Members leave when they hear why the job ends. One that has not heard it yet only sees them go, and would
        blame them: so it listens for a moment. Not to be called from the member's thread.
        """
        if failure.kind == "peer_lost" and not self.closed:
            self.member.wait_until_all_left(_REASON_S)
        return self._explain(failure)

    def _explain(self, failure: Failure) -> JobError:
        error = self.member.error
        if isinstance(error, JobError) and not self.closed:
            ended_by_agreement = failure.kind == "closed"
            is_the_same_loss = isinstance(error, PeerLostError) and failure.rank == error.rank
            only_saw_another_go = failure.kind == "peer_lost" and not is_the_same_loss
            if ended_by_agreement or only_saw_another_go:
                return error
        return translate(failure, self._name_of, self.config.member.deployment.num_workers, self.player.member)

    def refusal(self, reason: Exception, tensor: str, step: int) -> LegatoError:
        """Why the engine did not take a task."""
        if self.engine.failure is not None:
            return self._explain(self.engine.failure)
        if self.closed:
            return ClosedError(f"tensor {tensor!r}, step {step}: the group is closed", tensor=tensor, step=step)
        return InputError(f"tensor {tensor!r}, step {step}: {reason}")

    def _name_of(self, tensor: int) -> str | None:
        definition = self.player.definition(tensor)
        return None if definition is None else definition.tensor.name

    def _leave_to_parent(self) -> None:
        self.closed = self._inherited = True

    def _end_engine_and_conductor(self) -> None:
        self.player.close()
        if self._conductor is not None:
            self._conductor.close()


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
