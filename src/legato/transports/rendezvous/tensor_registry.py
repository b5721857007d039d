"""The tensor registry: what every rank has declared, and what all of them agree on.

The life of a name, kept by the conductor and free of I/O:

    first rank declares      last rank declares              last member has defined it
    ───────────────► COLLECTING ───────────► DEFINING ───────────────────────► READY
                         │  a mismatch, a wrong root, a rank missing at the deadline  │ declared anew,
                         └───────────────────► REFUSED ◄──────────────────────────────┘ with another meaning

A refused name stays refused: ranks that declare it later hear the same words as those that waited.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from legato.errors import DeadlineError, InputError, JobError, LegatoError, MismatchError, ProtocolError
from legato.transports.declaration import Declaration, Operation
from legato.transports.rendezvous.messages import Define, Definition, ErrorText, Refused, TensorsReady

MAX_NAMES = 1 << 20
"""What a job can agree on: each name costs every member memory until the job ends."""

Answer = Define | TensorsReady | Refused


class NameState(Enum):
    COLLECTING = auto()
    DEFINING = auto()
    READY = auto()
    REFUSED = auto()


@dataclass(slots=True)
class _Entry:
    deadline_s: float
    state: NameState = NameState.COLLECTING
    said: dict[int, Declaration] = field(default_factory=dict)
    undefined: set[int] = field(default_factory=set)
    error: ErrorText | None = None


class TensorRegistry:
    """Declarations in, answers for every member out."""

    def __init__(self, *, num_workers: int, num_members: int, timeout_s: float) -> None:
        self._num_workers = num_workers
        self._members = range(num_members)
        self._timeout_s = timeout_s
        self._entries: dict[str, _Entry] = {}
        self._gone: dict[int, JobError] = {}
        self._names: list[str] = []
        """The names that have a number, by number."""

    def declare(self, rank: int, tensors: Sequence[Declaration], now_s: float) -> list[Answer]:
        """A rank has declared a batch."""
        refused: list[Answer] = []
        complete: list[Definition] = []
        for tensor in tensors:
            if tensor.name not in self._entries and len(self._entries) >= MAX_NAMES:
                error = InputError(f"tensor {tensor.name!r}: the job has {MAX_NAMES} names already; use names again")
                refused.append(Refused(tensor.name, ErrorText.of(error)))
                continue
            entry = self._entries.setdefault(tensor.name, _Entry(now_s + self._timeout_s))
            fault = self._fault(entry, rank, tensor)
            if fault is not None:
                refused.append(self._refuse(tensor.name, fault))
            elif entry.state is NameState.COLLECTING:
                entry.said[rank] = tensor
                if len(entry.said) == self._num_workers:
                    complete.append(self._number(entry, tensor))
        return [*refused, Define(tuple(complete))] if complete else refused

    def defined(self, member: int, ids: Iterable[int]) -> list[Answer]:
        """A member has made tensors known to its engine."""
        ready: list[int] = []
        for number in ids:
            if not 0 <= number < len(self._names):
                raise ProtocolError(f"member {member} has defined tensor {number}, which nobody declared", rank=member)
            entry = self._entries[self._names[number]]
            entry.undefined.discard(member)
            if entry.state is NameState.DEFINING and not entry.undefined:
                entry.state = NameState.READY
                ready.append(number)
        return [TensorsReady(tuple(ready))] if ready else []

    def expire(self, now_s: float) -> list[Answer]:
        """Refuse what has waited too long, naming who is missing."""
        late = {name: entry for name, entry in self._pending().items() if entry.deadline_s <= now_s}
        return [self._refuse(name, self._lateness(name, entry)) for name, entry in late.items()]

    def gone(self, member: int, error: JobError) -> list[Answer]:
        """A member has left or died: what still needs it is refused now, and so is what will."""
        self._gone[member] = error
        waiting = {name: entry for name, entry in self._pending().items() if self._needs(entry, member)}
        return [self._refuse(name, self._absence(name, error)) for name in waiting]

    def missing(self, name: str) -> tuple[int, ...]:
        """The ranks that have not declared a name which others have."""
        entry = self._entries.get(name)
        if entry is None or entry.state is not NameState.COLLECTING:
            return ()
        return tuple(rank for rank in range(self._num_workers) if rank not in entry.said)

    def deadline_s(self) -> float | None:
        """When `expire` is next needed."""
        return min((entry.deadline_s for entry in self._pending().values()), default=None)

    def _pending(self) -> dict[str, _Entry]:
        waiting = (NameState.COLLECTING, NameState.DEFINING)
        return {name: entry for name, entry in self._entries.items() if entry.state in waiting}

    def _fault(self, entry: _Entry, rank: int, tensor: Declaration) -> LegatoError | None:
        """Why this declaration cannot stand, given what has been said before."""
        name = f"tensor {tensor.name!r}"
        if entry.error is not None:
            return entry.error.error()
        for member, error in self._gone.items():
            if self._needs(entry, member):
                return self._absence(tensor.name, error)
        needs_root = tensor.operation in (Operation.BROADCAST, Operation.GATHER)
        if needs_root and (tensor.root is None or not 0 <= tensor.root < self._num_workers):
            return InputError(f"{name}: rank {rank} says root {tensor.root}, it must be 0 to {self._num_workers - 1}")
        if not 0 <= tensor.backups < self._num_workers:
            return InputError(f"{name}: backups is {tensor.backups}; accepted is 0 to {self._num_workers - 1}")
        if rank in entry.said and entry.said[rank] != tensor:
            words = f"rank {rank} declared {entry.said[rank].words()} before and says {tensor.words()} now"
            return MismatchError(f"{name}: {words}; one name has one meaning", rank=rank, tensor=tensor.name)
        for other, said in entry.said.items():
            if said != tensor:
                words = f"rank {other} says {said.words()}, rank {rank} says {tensor.words()}"
                return MismatchError(f"{name}: {words}", rank=rank, tensor=tensor.name)
        return None

    def _needs(self, entry: _Entry, member: int) -> bool:
        """Whether this name waits for the member."""
        if entry.state is NameState.COLLECTING:
            return member >= self._num_workers or member not in entry.said
        return member in entry.undefined

    @staticmethod
    def _absence(name: str, error: JobError) -> JobError:
        return type(error)(f"tensor {name!r}: {error}", rank=error.rank, tensor=name)

    def _number(self, entry: _Entry, tensor: Declaration) -> Definition:
        entry.state = NameState.DEFINING
        entry.undefined = set(self._members)
        self._names.append(tensor.name)
        return Definition(len(self._names) - 1, tensor)

    def _refuse(self, name: str, error: LegatoError) -> Refused:
        entry = self._entries[name]
        entry.state = NameState.REFUSED
        entry.error = ErrorText.of(error)
        return Refused(name, entry.error)

    def _lateness(self, name: str, entry: _Entry) -> DeadlineError:
        if entry.state is NameState.DEFINING:
            missing = sorted(entry.undefined)
            what = f"members {_list(missing)} did not confirm it"
        else:
            missing = sorted(set(range(self._num_workers)) - set(entry.said))
            what = f"ranks {_list(missing)} did not declare it"
        return DeadlineError(
            f"tensor {name!r}: {what} within {self._timeout_s:g} s; every rank must use the same names",
            rank=missing[0],
            tensor=name,
        )


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
