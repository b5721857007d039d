"""Joined ranks: those that are out of data, and what the others tell them.

A rank that has joined starts nothing by itself any more, and cannot hear what the others start through the engine. So
they tell it, in notes that all ranks hear in one order:

    0 ── joined ──►  all                   from now on the lowest of those that go on says what it starts,
    1 ── asked: a sum of 3 floats ──► all  and what it has under way; 0 takes part in it with nothing
    1 ── joined ──►  all                   the last one: it is over, on every rank at the same note

Of anything but a sum there is no way to take part with nothing: whoever waits for it gets an error, and the ranks that
have joined count its name as used, as those do.
"""

import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from legato.errors import DeadlineError, JobError, ProtocolError
from legato.records import build
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup

_SLICE_S = 0.5


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that a rank has started, so that another can start the same."""

    kind: str
    name: str | None
    shape: tuple[int, ...]
    words: tuple[str, ...]
    """What else its signature consists of: the dtype first, then the reduction."""
    known: str
    """The group's name for it."""
    turn: int
    """How many there have been of that name, this one included."""

    @property
    def can_be_answered(self) -> bool:
        return self.kind == "allreduce"


@dataclass(frozen=True, slots=True)
class _Note:
    """A rank has joined, having started these that nobody can answer; or asks those that have for an operation."""

    asked: Call | None = None
    begun: tuple[Call, ...] = ()


@dataclass(slots=True)
class _State:
    """What is known here; guarded by the lock of its owner."""

    joined: dict[int, dict[str, int]] = field(default_factory=dict)
    """By rank, in the order in which they joined: the turns that they had begun before."""
    open: dict[str, Call] = field(default_factory=dict)
    """What this rank has under way."""
    is_here: bool = False
    """This rank has joined."""


class JoinedRanks:
    """Who has joined, of one job. What it hears comes from the member's thread."""

    def __init__(self, group: NativeGroup) -> None:
        self._group = group
        self._member = group.session.member
        self._lock = threading.Lock()
        self._state = _State()
        self._heard: queue.SimpleQueue[Call | int | None] = queue.SimpleQueue()
        """For `answer_all`: calls; the rank that was the last to join; None where anybody has."""
        self._entered = threading.Event()
        """This rank's own note has come back."""
        self._member.also_absent(self._absence)
        self._member.hear_notes(self._hear)

    def started(self, call: Call) -> None:
        """This rank has an operation under way, until it is `over`."""
        with self._lock:
            self._state.open[call.known] = call
            asks = self._asks()
        if asks:
            self._ask(call)

    def over(self, known: str) -> None:
        with self._lock:
            self._state.open.pop(known, None)

    def enter(self, timeout_s: float) -> None:
        """Join: when it returns, whatever this rank does now comes after its having joined, to everybody."""
        with self._lock:
            self._state.is_here = True
            begun = tuple(call for call in self._state.open.values() if not call.can_be_answered)
        self._entered.clear()
        self._say(_Note(begun=begun))
        if not self._entered.wait(timeout_s):
            raise self._member.error or DeadlineError("rank 0, which conducts the job, does not answer", rank=0)

    def answer_all(self, answer: Callable[[Call], None], check: Callable[[], None], limit_s: float | None) -> int:
        """After `enter`, answer what the others start until all have joined: the last one.

        `check` raises what makes waiting pointless. DeadlineError after `limit_s` without a word from anybody.
        """
        heard_s = time.monotonic()
        while True:
            try:
                heard = self._heard.get(timeout=_SLICE_S)
            except queue.Empty:
                check()
                self._check_heard(heard_s, limit_s)
                continue
            heard_s = time.monotonic()
            if isinstance(heard, int):
                return heard
            if heard is not None:
                answer(heard)

    def _check_heard(self, heard_s: float, limit_s: float | None) -> None:
        if self._member.error is not None:
            raise self._member.error
        if limit_s is not None and time.monotonic() - heard_s > limit_s:
            with self._lock:
                missing = [rank for rank in range(self._group.size) if rank not in self._state.joined]
            ranks = ", ".join(map(str, missing))
            raise DeadlineError(
                f"join: ranks {ranks} have neither joined nor started anything within {limit_s:g} s; "
                "see their logs, or give a longer timeout (LEGATO_TIMEOUT_S)",
                rank=missing[0],
            )

    # ---- notes ----

    def _hear(self, rank: int, text: str) -> None:
        try:
            note = build(_Note, json.loads(text))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"rank {rank} sent a note that cannot be read ({error!r:.100})", rank=rank) from None
        if note.asked is None:
            self._hear_joined(rank, note.begun)
        elif self._state.is_here:
            self._heard.put(note.asked)

    def _hear_joined(self, rank: int, begun: tuple[Call, ...]) -> None:
        with self._lock:
            state = self._state
            state.joined[rank] = {call.known: call.turn for call in begun}
            is_last = len(state.joined) == self._group.size
            if is_last:
                state.joined, state.is_here = {}, False
                self._heard.put(rank)
            elif state.is_here:
                self._heard.put(None)
            if rank == self._group.rank:
                self._entered.set()
            calls = list(state.open.values()) if self._asks() else []
        for call in calls:
            self._ask(call)

    def _asks(self) -> bool:
        """Whether this is the rank that tells those who have joined."""
        state = self._state
        if not state.joined or state.is_here:
            return False
        return self._group.rank == min(set(range(self._group.size)) - state.joined.keys())

    def _ask(self, call: Call) -> None:
        self._say(_Note(asked=call))

    def _say(self, note: _Note) -> None:
        self._member.note(json.dumps(dataclasses.asdict(note), separators=(",", ":")))

    # ---- what cannot be answered ----

    def _absence(self, tensor: Declaration, step: int) -> JobError | None:
        """Why an operation will never be done: it needs ranks that have joined."""
        with self._lock:
            joined = dict(self._state.joined)
            if not joined or self._state.is_here:
                return None
            calls = [call for call in self._state.open.values() if not call.can_be_answered]
        # An operation may be made of several tensors, whose names contain its own.
        for call in calls:
            if call.known in tensor.name:
                without = [rank for rank, begun in joined.items() if begun.get(call.known, 0) < call.turn]
                if without:
                    ranks = ", ".join(f"rank {rank}" for rank in sorted(without))
                    return JobError(
                        f"{call.known!r}: {ranks} joined and has no data left; only allreduce goes on without it, so "
                        f"call {call.kind} before join(), or after it on every rank",
                        rank=min(without),
                        tensor=tensor.name,
                        step=step,
                    )
        return None
