"""Notes: what one rank has seen, in a bounded memory.

Two kinds: moments in the life of a task, which become spans when the timeline is written, and spans of computation.

    moments    READY ── START of a part … FINISH of a part ── DONE ── APPLIED
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple

from legato.errors import InputError

LAST_STEP = 2**62
"""Later than any step."""

Work = Literal["forward", "backward", "wait", "update"]
"""What a rank does itself: compute a layer, wait for a sum that the layer needs, apply it."""

HAND_OVER = "hand-over"
"""In place of a sum's name: a pass is over, and waits until its last gradients are on their way."""


class What(Enum):
    """A moment in the life of a task or of one of its parts."""

    READY = "ready"
    """The gradient is there; the task is queued."""
    START = "start"
    """A part starts."""
    SENT = "sent"
    """The part's bytes are handed over; its sum has not come back."""
    FINISH = "finish"
    """The part's sum is here."""
    DONE = "done"
    """The task is over: the sum of the whole tensor is here."""
    APPLIED = "applied"
    """The optimizer has used it."""


class Moment(NamedTuple):
    """One moment. A part of a bucket names every tensor in it; offset and length are the part's."""

    ns: int
    what: What
    tensors: tuple[str, ...]
    step: int
    offset: int = 0
    length: int = 0
    stage: str = "sync"


class Stretch(NamedTuple):
    """A stretch of a rank's own time."""

    work: Work
    name: str
    begin_ns: int
    end_ns: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineConfig:
    """Where a timeline goes and how much of a run it keeps."""

    path: Path
    """The file to write."""
    first_step: int = 0
    """The first step to keep."""
    last_step: int = LAST_STEP
    """The last one."""
    max_notes: int = 200_000
    """How many notes a rank keeps, of each kind; what comes later is left out, and the timeline says so."""

    def __post_init__(self) -> None:
        if not 0 <= self.first_step <= self.last_step:
            raise InputError(f"timeline: steps {self.first_step} to {self.last_step}; accepted is 0 <= first <= last")
        if self.max_notes < 1:
            raise InputError(f"timeline: max_notes={self.max_notes} must be at least 1")
        if not self.path.parent.is_dir():
            raise InputError(f"timeline: {str(self.path.parent)!r}, where it should be written, is not a folder")


class Notes:
    """Takes notes of the steps that are wanted, up to the limit. Safe to write from several threads."""

    def __init__(self, config: TimelineConfig) -> None:
        self.config = config
        self.moments: list[Moment] = []
        self.stretches: list[Stretch] = []
        self.is_full = False
        """Whether something was left out."""

    def moment(self, moment: Moment) -> None:
        if self._wants(moment.step, len(self.moments)):
            self.moments.append(moment)

    def stretch(self, stretch: Stretch) -> None:
        if self._wants(stretch.step, len(self.stretches)):
            self.stretches.append(stretch)

    def _wants(self, step: int, num_kept: int) -> bool:
        if not self.config.first_step <= step <= self.config.last_step:
            return False
        if num_kept >= self.config.max_notes:
            self.is_full = True
            return False
        return True
