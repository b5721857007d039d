"""What members and conductor say to each other: typed messages, as length-prefixed JSON, each with a stamp behind it.

Nothing is unpickled: a message is built only from fields of the types that its class names, its length is checked
before it is read, and its stamp (session_keys.py) before anything is made of it.
"""

import dataclasses
import hmac
import json
import struct
import typing
from dataclasses import dataclass

from legato import errors
from legato.errors import CorruptionError, JobError, LegatoError, ProtocolError
from legato.records import build
from legato.transports.declaration import Declaration
from legato.transports.rendezvous.session_keys import STAMP_BYTES, Stamps

MAX_MESSAGE_BYTES = 16 << 20
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class ErrorText:
    """A typed error on its way to other members."""

    kind: str
    text: str
    rank: int | None = None
    tensor: str | None = None
    step: int | None = None

    @classmethod
    def of(cls, error: LegatoError) -> "ErrorText":
        if isinstance(error, JobError):
            return cls(type(error).__name__, str(error), error.rank, error.tensor, error.step)
        return cls(type(error).__name__, str(error))

    def error(self) -> LegatoError:
        """The error itself, to be raised here."""
        found = getattr(errors, self.kind, None)
        if not (isinstance(found, type) and issubclass(found, LegatoError)):
            return LegatoError(self.text)
        if issubclass(found, JobError):
            return found(self.text, rank=self.rank, tensor=self.tensor, step=self.step)
        return found(self.text)


# ---- from a member to the conductor --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Who I am, where I listen, and what I take for granted: `common` must be equal on all members.

    `identity` is my host's (`hosts.identity`) and `door` where I listen for members on it; both empty to share nothing.
    """

    rank: int | None
    host: str
    port: int
    common: tuple[tuple[str, str], ...]
    identity: str = ""
    door: str = ""


@dataclass(frozen=True, slots=True)
class Connected:
    """All my connections to the other members are up."""


@dataclass(frozen=True, slots=True)
class Declare:
    tensors: tuple[Declaration, ...]


@dataclass(frozen=True, slots=True)
class Defined:
    """I have made these tensors known to my engine: frames of them may come."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """A plan, as JSON, from a step on; with `everyone` it holds once all ranks have proposed it."""

    plan: str
    from_step: int
    everyone: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """The digest of what I would do, or why I cannot (then `refusal` is not empty)."""

    round: int
    digest: str
    refusal: str


@dataclass(frozen=True, slots=True)
class Applied:
    round: int


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What I measured in the window of steps that began with `from_step`; for rank 0, who alone knows what to make of
    the text."""

    from_step: int
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Words for every member, which the conductor passes on without reading them: all hear all notes in one order."""

    text: str


@dataclass(frozen=True, slots=True)
class Pace:
    """What my steps before `step` were made of, in seconds a step, and how fast my links carry what is sent."""

    step: int
    step_s: float
    input_s: float
    """Before the first layer: data, and copies of it."""
    compute_s: float
    """Everything else but waits for averages."""
    waited_s: float
    link_bytes_per_s: float
    """To the peer that takes most; 0.0 where too little leaves this machine to tell."""
    slowest_peer: int | None
    """The one that takes least."""
    slowest_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """I have been waiting for a while: for a tensor, or for all to agree on a plan (`tensor` is None); for these ranks,
    as far as a server has told."""

    tensor: str | None
    step: int | None
    missing: tuple[int, ...]
    waited_s: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """I wait no longer for what I said."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A process of an elastic job, a worker or a server, and where it can be reached as long as it lives."""

    id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class OwnPost:
    """In the first epoch of an elastic job: where I can be reached in later ones, too."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Leave:
    """I begin nothing more, and go when everybody has said so.

    `steps` are the last ones that I have begun, by the tensor's name: what I have not begun, nobody needs to wait for.
    """

    steps: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """I cannot go on; tell the others."""

    error: ErrorText


# ---- from the conductor to the members -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Everybody is here: who you are, where each member listens, on which host it runs and where it listens there."""

    member: int
    job: str
    addresses: tuple[tuple[str, int], ...]
    hosts: tuple[int, ...]
    doors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """All connections are up everywhere."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The number under which a declared tensor travels."""

    id: int
    tensor: Declaration


@dataclass(frozen=True, slots=True)
class Define:
    definitions: tuple[Definition, ...]


@dataclass(frozen=True, slots=True)
class TensorsReady:
    """Every member knows these tensors: they may be sent."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    name: str
    error: ErrorText


@dataclass(frozen=True, slots=True)
class Prepare:
    round: int
    plan: str
    from_step: int


@dataclass(frozen=True, slots=True)
class Commit:
    round: int


@dataclass(frozen=True, slots=True)
class Done:
    """Every member has applied the plan."""

    plan: str
    from_step: int


@dataclass(frozen=True, slots=True)
class Abort:
    """The plan is not taken; nothing has changed anywhere."""

    plan: str
    from_step: int
    error: ErrorText


@dataclass(frozen=True, slots=True)
class WindowReported:
    """To rank 0: a worker's `WindowReport`."""

    rank: int
    from_step: int
    text: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A member's `Note`."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """Ranks wait for each other; `suspects` are those that show in their logs what they are doing."""

    text: str
    suspects: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Straggling:
    """To rank 0: one member is slower than the others."""

    text: str


@dataclass(frozen=True, slots=True)
class AllPosts:
    """Every member's `OwnPost`, by number."""

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """A worker begins nothing more, beyond these steps; it stays until all workers say so."""

    member: int
    steps: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AllLeft:
    """Nobody needs anything any more."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """The job is over."""

    error: ErrorText


# ---- between members of an elastic job, when an epoch has ended (legato.elastic) ------------------------------------


@dataclass(frozen=True, slots=True)
class Here:
    """I live, and my epoch has ended; -1 is a newcomer's. `at_boundary` says that nothing of a step is under way.

    Who `serves` is a server: it never has anything of a step.
    """

    epoch: int
    peer: Peer
    at_boundary: bool
    serves: bool


@dataclass(frozen=True, slots=True)
class Called:
    """The next epoch: who is in it, workers in the order of ranks, then learners, and where its conductor is.

    `is_boundary` says that everybody had nothing under way: then workers that are new may be among them.
    """

    epoch: int
    workers: tuple[Peer, ...]
    servers: tuple[Peer, ...]
    learners: tuple[Peer, ...]
    is_boundary: bool
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Dismissed:
    """There is no next epoch for you, and why."""

    error: ErrorText


BetweenMembers = Here | Called | Dismissed
FromMember = (
    Hello
    | Connected
    | Declare
    | Defined
    | Propose
    | Vote
    | Applied
    | WindowReport
    | Note
    | Pace
    | Waiting
    | Resumed
    | OwnPost
    | Leave
    | Failed
)
FromConductor = (
    Welcome
    | Begin
    | Define
    | TensorsReady
    | Refused
    | Prepare
    | Commit
    | Done
    | Abort
    | WindowReported
    | Noted
    | Stalled
    | Straggling
    | AllPosts
    | Left
    | AllLeft
    | Fatal
)
Message = FromMember | FromConductor | BetweenMembers

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in typing.get_args(Message)}


def encode(message: Message) -> bytes:
    """A message with its length in front."""
    fields = dataclasses.asdict(message)
    body = json.dumps({"kind": type(message).__name__, **fields}, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a {type(message).__name__} message of {len(body)} bytes exceeds {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """The message in these bytes; ProtocolError when they are not one."""
    try:
        fields = json.loads(body)
        kind = _KINDS[fields.pop("kind")]
        return build(kind, fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"not a message of legato: {error!r:.200}") from None


class Inbox:
    """Turns the bytes of a stream into messages; `key` is that of the direction they come from."""

    def __init__(self, key: bytes) -> None:
        self._bytes = bytearray()
        self._stamps = Stamps(key)

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes."""
        self._bytes += data
        messages: list[Message] = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes exceeds {MAX_MESSAGE_BYTES}")
            end = _LENGTH.size + length
            if len(self._bytes) < end + STAMP_BYTES:
                break
            message, stamp = bytes(self._bytes[:end]), self._bytes[end : end + STAMP_BYTES]
            if not hmac.compare_digest(stamp, self._stamps.next(message)):
                raise CorruptionError("a control message was changed, repeated, left out or moved on its way")
            messages.append(decode(message[_LENGTH.size :]))
            del self._bytes[: end + STAMP_BYTES]
        return messages
