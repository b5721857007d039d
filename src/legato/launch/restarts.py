"""Restarts: which ranks and servers of an elastic job start again, when, and when the job is over.

         start                 exit 0
  DUE ───────────► RUNNING ─────────────► DONE
   ▲                  │ failed
   └─ may start again ┤
                      └─ may not ───────► LOST

Free of I/O: what happened and the time come in.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from legato.errors import InputError

_RATE = 10
_RATE_S = 60.0
"""How many restarts there may be in how long, unless the user says how many in all."""
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
"""Before one starts again; twice as long each time, as long as it fails soon."""
_SOON_S = 30.0
"""What has run for longer is not failing for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """How many ranks a job has, and how often they may start again."""

    min_workers: int
    """The job goes on with as few."""
    max_workers: int
    """The job begins with as many."""
    restarts: int | None = None
    """In all, of ranks and servers; None is ten in any minute."""
    num_servers: int = 0
    """Beside the ranks: the job goes on without any of them."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_workers <= self.max_workers:
            raise InputError(
                f"--min is {self.min_workers} and --max {self.max_workers}; accepted are numbers of ranks from 1 on, "
                "--min no larger than --max"
            )

    @property
    def limit(self) -> str:
        """How often they may start again, in words."""
        return f"{_RATE} in a minute" if self.restarts is None else f"{self.restarts} in all (--restarts)"


class State(Enum):
    """Of a rank or a server; the drawing is above."""

    DUE = auto()
    RUNNING = auto()
    DONE = auto()
    LOST = auto()


@dataclass(slots=True)
class _Member:
    state: State
    since_s: float
    """When it has started; of one that is due, when to start it."""
    pause_s: float = _PAUSE_S
    """Before its next start."""


@dataclass(slots=True)
class Members:
    """The ranks of an elastic job, and its servers, whose numbers count on from the ranks; at first all are due."""

    elastic: Elastic
    now_s: float
    _members: list[_Member] = field(init=False)
    _restarts_s: list[float] = field(init=False, default_factory=list)
    """When some were started again."""

    def __post_init__(self) -> None:
        elastic = self.elastic
        self._members = [_Member(State.DUE, self.now_s) for _ in range(elastic.max_workers + elastic.num_servers)]

    def count(self, *states: State) -> int:
        """Ranks, not servers."""
        return sum(each.state in states for each in self._members[: self.elastic.max_workers])

    @property
    def num_left(self) -> int:
        """Those that are not lost."""
        return self.count(State.DUE, State.RUNNING, State.DONE)

    @property
    def is_enough(self) -> bool:
        return self.num_left >= self.elastic.min_workers

    @property
    def is_over(self) -> bool:
        return not self.is_enough or not self.count(State.DUE, State.RUNNING)

    def due(self, now_s: float) -> list[int]:
        """Those to start now."""
        members = enumerate(self._members)
        return [member for member, each in members if each.state is State.DUE and each.since_s <= now_s]

    def next_s(self) -> float | None:
        """When the next one is to be started; None where none is."""
        return min((each.since_s for each in self._members if each.state is State.DUE), default=None)

    def started(self, member: int, now_s: float) -> None:
        self._members[member].state, self._members[member].since_s = State.RUNNING, now_s

    def finished(self, member: int) -> None:
        self._members[member].state = State.DONE
        self._give_up_where_nobody_is_left_to_join()

    def failed(self, member: int, now_s: float) -> float | None:
        """How long to wait before it starts again; None where it does not."""
        each = self._members[member]
        if now_s - each.since_s > _SOON_S:
            each.pause_s = _PAUSE_S
        pause_s = each.pause_s
        each.state, each.since_s = State.LOST, now_s
        if self._may_restart(now_s):
            self._restarts_s.append(now_s)
            each.state, each.since_s = State.DUE, now_s + pause_s
            each.pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._give_up_where_nobody_is_left_to_join()
        return pause_s if each.state is State.DUE else None

    def recalled(self, member: int, now_s: float) -> None:
        """It was ended to start anew, which is not its fault."""
        self._members[member].state, self._members[member].since_s = State.DUE, now_s

    def _may_restart(self, now_s: float) -> bool:
        if self.elastic.restarts is not None:
            return len(self._restarts_s) < self.elastic.restarts
        return sum(now_s - restart_s < _RATE_S for restart_s in self._restarts_s) < _RATE

    def _give_up_where_nobody_is_left_to_join(self) -> None:
        """Ranks that come back join those that train. Where some have finished and none trains, the job is over; where
        all are lost at once, all of them start anew, which takes as many as there were, and as many servers."""
        servers = self._members[self.elastic.max_workers :]
        has_all_servers = all(each.state is not State.LOST for each in servers)
        if self.count(State.RUNNING) or (has_all_servers and not self.count(State.DONE, State.LOST)):
            return
        for each in self._members:
            if each.state is State.DUE:
                each.state = State.LOST
