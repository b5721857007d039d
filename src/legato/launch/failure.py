"""Failures: which member of a job failed first, and how to say it once."""

import json
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Self

from legato.records import build

UNREACHED = 3
"""The exit code where hosts did not come together."""
TOO_FEW = 4
"""The exit code of an elastic job that has lost more ranks than it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a member ended that should not have."""

    who: str
    """`rank 1`, `server 0`, `host a`, `the job`."""
    exit_code: int
    """As a shell gives it: 128 + n for signal n."""
    what: str
    """One line."""
    trace: str = ""
    """Where in the script, if that says more than the line."""
    is_consequence: bool = False
    """Whether it failed because another one had ended."""
    time_ns: int = field(default_factory=time.time_ns)
    host: str = field(default_factory=socket.gethostname)
    """Empty where no host is to blame, or `who` is one."""

    def json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return build(cls, json.loads(text))

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        return f"{self.trace}legato: {self.who}{where} failed: {self.what}"


def ended(who: str, returncode: int) -> Failure:
    """Of a process that could not say why; a code below 0 is a signal.

    It comes before what others say, who may only have noticed; but SIGTERM is how a launcher ends those that are left.
    """
    if returncode >= 0:
        return Failure(who=who, exit_code=returncode, what=f"exit code {returncode}", time_ns=0)
    number = -returncode
    name = signal.Signals(number).name if number in list(signal.Signals) else str(number)
    is_consequence = number == signal.SIGTERM
    return Failure(
        who=who,
        exit_code=128 + number,
        what=f"killed by signal {name}",
        is_consequence=is_consequence,
        time_ns=time.time_ns() if is_consequence else 0,
    )


def first(failures: Iterable[Failure]) -> Failure | None:
    """The one that the others follow from."""
    return min(failures, key=lambda each: (each.is_consequence, each.time_ns), default=None)
