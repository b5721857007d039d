"""Facts: what is told of a job, as plain data. Times are in seconds, sizes in bytes, `time` is that of day (Unix)."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from legato.errors import InputError
from legato.records import build

REPORT_KIND = "live"
"""Tells these reports on their way to rank 0 from the tuner's."""

MarkerKind = Literal["start", "plan", "tuner", "fault", "restart", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What a rank has exchanged with one other member since the job began."""

    peer: int
    """Workers by their rank, then servers."""
    shared: bool
    """Through memory, with a member of the same host."""
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a rank has moved since the job began, and what is on its way now."""

    sent_bytes: int = 0
    received_bytes: int = 0
    shared_bytes: int = 0
    """Through memory to ranks of the same host, both ways."""
    in_flight_bytes: int = 0
    links: tuple[LinkTraffic, ...] = ()
    """The same by peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one rank has seen of its steps since its last figures."""

    kind: str = REPORT_KIND
    rank: int
    step: int
    """The last one that is over."""
    time_s: float
    """When, by this rank's monotonic clock."""
    num_steps: int
    seconds: float
    """How long these steps took together."""
    step_s: float
    """The median of a step."""
    exposed_s: float
    """The mean time for which a step waited for sums."""
    traffic: Traffic
    queue: tuple[tuple[int, int], ...]
    """(priority, bytes) of gradients that had not come back as averages when backward ended, in one of the steps."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Figures":
        """Read what `to_json` wrote; anything else is refused."""
        try:
            return build(cls, json.loads(text))
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise InputError(f"figures: not those of a rank ({error!r:.100})") from None


def is_figures(text: str) -> bool:
    """Whether a report is one of these."""
    return text.startswith(f'{{"kind":"{REPORT_KIND}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPoint:
    """One rank in a point."""

    rank: int
    step: int
    step_s: float
    exposed_s: float
    sent_bytes: int
    received_bytes: int
    shared_bytes: int
    sent_bytes_per_s: float
    received_bytes_per_s: float
    shared_bytes_per_s: float
    in_flight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """One rank's link to another member."""

    rank: int
    peer: str
    """A rank, or `server 0`."""
    shared: bool
    sent_bytes: int
    received_bytes: int
    sent_bytes_per_s: int
    received_bytes_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All links of all ranks, about once a second: that between two ranks is in it twice, as each of them tells."""

    time: float
    links: tuple[LinkPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The whole job, about once a second."""

    time: float
    step: int
    """The last one that is over on rank 0."""
    step_s: float
    """A step takes as long as on its slowest rank."""
    steps_per_s: float
    exposed_s: float
    """The median over the ranks of what a step waits for sums."""
    bound_s: float | None
    """T*, where it is known."""
    ranks: tuple[RankPoint, ...]
    queue: tuple[tuple[int, int], ...]
    """(priority, bytes) on rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Something that happened once."""

    time: float
    kind: MarkerKind
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What does not change while a job runs."""

    name: str
    host: str
    run: str
    """Another one after a restart."""
    started: float
    workers: int
    about: str = ""
    """What is on, and why."""
    tensors: tuple[tuple[str, int], ...] = ()
    """Name and bytes of each gradient, by priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that steps have run."""

    policy: str
    partition_bytes: int | None
    credit_bytes: int | None
    num_steps: int
    step_s: float | None
    """The median of the last of them; None before the first whose time counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningState:
    """Where the tuner stands."""

    trials: tuple[Trial, ...]
    """In the order in which they were first tried."""
    path: tuple[int, ...]
    """What ran one after the other, by its place among the trials."""
    predictions: tuple[tuple[str, int | None, int | None, float], ...]
    """(policy, partition, credit, seconds) of what the twin has simulated."""
    said: str
    """The tuner's last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Of a Gantt chart."""

    row: str
    kind: str
    name: str
    begin_s: float
    """Since the chart's beginning."""
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """The last step of rank 0, of which a timeline is taken."""

    step: int
    seconds: float
    boxes: tuple[Box, ...]


Fact = JobFacts | Point | Links | Marker | TuningState | Gantt

KINDS: dict[type[Any], str] = {
    JobFacts: "job",
    Point: "point",
    Links: "links",
    Marker: "marker",
    TuningState: "tuning",
    Gantt: "gantt",
}
"""What each is called on its way to a reader."""
