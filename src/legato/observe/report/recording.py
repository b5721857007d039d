"""Recordings: a timeline's files, read back into what each rank did (`chrome` writes them).

Whatever else is in a file, such as a profiler's own events, is ignored.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from legato.errors import InputError
from legato.observe.notes import Stretch, Work
from legato.observe.spans import Section

_SECTIONS = {section.name.lower(): section for section in Section}
_ALIKE = re.compile(r", and (\d+) alike$")
"""A simulated worker can stand for others (cli/sim.py)."""


@dataclass(slots=True, kw_only=True)
class Task:
    """The life of a task: what it went through, in order, as long as the timeline saw it."""

    tensor: str
    step: int
    num_bytes: int
    ready_ns: int
    is_over: bool
    queued_ns: int = 0
    flying_ns: int = 0
    arrived_ns: int = 0
    """How long its sum lay there before it was applied."""


class Flight(NamedTuple):
    """A part in flight."""

    lane: int
    tensor: str
    begin_ns: int
    end_ns: int
    step: int
    num_bytes: int
    sent_ns: int | None
    """When its bytes were handed to the network; only the native engine tells."""


@dataclass(slots=True, kw_only=True)
class Rank:
    """What one rank did."""

    number: int
    title: str = ""
    label: str = ""
    """What the timeline says of it, such as the error of its clock."""
    stints: list[Stretch] = field(default_factory=list)
    """In the order of time."""
    tensors: list[str] = field(default_factory=list)
    """In the order in which the forward pass needs them, as far as known: by urgency."""
    tasks: list[Task] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    """In the order of time."""
    num_lanes: int = 0
    """How many parts were in flight at once."""

    @property
    def stands_for(self) -> int:
        """How many workers it shows: a simulated one may have others like it."""
        alike = _ALIKE.search(self.title)
        return 1 + int(alike[1]) if alike else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All ranks of one timeline."""

    ranks: tuple[Rank, ...]

    @property
    def num_workers(self) -> int:
        return sum(rank.stands_for for rank in self.ranks)


def read(paths: Sequence[Path]) -> Recording:
    """One recording from all these files, each with some ranks."""
    ranks: dict[int, Rank] = {}
    for path in paths:
        for number, events in _by_rank(path).items():
            if number in ranks:
                raise InputError(f"{path}: rank {number} is in another of these files already; name each rank once")
            ranks[number] = _rank(number, events, path)
    if not any(rank.stints or rank.tasks for rank in ranks.values()):
        names = ", ".join(map(str, paths))
        raise InputError(f"{names}: nothing of a timeline of legato's in it; LEGATO_TIMELINE=FILE makes one")
    return Recording(ranks=tuple(ranks[number] for number in sorted(ranks)))


def _by_rank(path: Path) -> dict[int, list[dict[str, Any]]]:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error!s:.80}); a timeline is a file in Chrome's trace format") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path}: no list of traceEvents; a timeline is a file in Chrome's trace format")
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if isinstance(event, dict) and isinstance(event.get("pid"), int):
            found[event["pid"]].append(event)
    return found


def _rank(number: int, events: Iterable[dict[str, Any]], path: Path) -> Rank:
    rank = Rank(number=number, title=f"rank {number}")
    names: dict[int, str] = {}
    rows: dict[Section, dict[int, list[dict[str, Any]]]] = {section: defaultdict(list) for section in Section}
    try:
        for event in events:
            if event["ph"] == "M":
                _describe(rank, names, event)
            elif event["ph"] == "X" and event.get("cat") in _SECTIONS:
                rows[_SECTIONS[event["cat"]]][event["tid"]].append(event)
        for section in (Section.FORWARD, Section.BACKWARD):
            rank.stints += [_stint(section, event) for row in rows[section].values() for event in row]
        for row in sorted(rows[Section.TENSORS]):
            rank.tensors.append(names[row])
            rank.tasks += _tasks(names[row], rows[Section.TENSORS][row])
        lanes = sorted(rows[Section.PARTS])
        rank.num_lanes = len(lanes)
        rank.flights = [_flight(lane, event) for lane, row in enumerate(lanes) for event in rows[Section.PARTS][row]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: rank {number} has an event that is not legato's ({error!r:.80})") from None
    rank.stints.sort(key=lambda stint: (stint.begin_ns, stint.end_ns))
    rank.flights.sort(key=lambda flight: (flight.begin_ns, flight.lane))
    return rank


def _describe(rank: Rank, names: dict[int, str], event: dict[str, Any]) -> None:
    match event["name"]:
        case "process_name":
            rank.title = str(event["args"]["name"])
        case "process_labels":
            rank.label = str(event["args"]["labels"])
        case "thread_name":
            names[event["tid"]] = str(event["args"]["name"])


def _span(event: dict[str, Any]) -> tuple[int, int]:
    begin_ns = round(event["ts"] * 1e3)
    return begin_ns, begin_ns + max(round(event["dur"] * 1e3), 0)


def _stint(section: Section, event: dict[str, Any]) -> Stretch:
    work: Work = "backward" if section is Section.BACKWARD else "forward"
    name = event["name"]
    # Modules and parameters have no blank in their names (spans.py).
    if name.startswith("wait "):
        work, name = "wait", name.removeprefix("wait ")
    elif name.startswith("update "):
        work, name = "update", name.removeprefix("update ")
    return Stretch(work, name, *_span(event), int(event["args"]["step"]))


def _tasks(tensor: str, events: Iterable[dict[str, Any]]) -> list[Task]:
    """A box for each task, followed by those of its phases."""
    tasks: list[Task] = []
    for event in events:
        begin_ns, end_ns = _span(event)
        match event["name"]:
            case "queued":
                tasks[-1].queued_ns = end_ns - begin_ns
            case "in flight":
                tasks[-1].flying_ns = end_ns - begin_ns
            case "arrived":
                tasks[-1].arrived_ns = end_ns - begin_ns
            case _:
                details = event["args"]
                tasks.append(
                    Task(
                        tensor=tensor,
                        step=int(details["step"]),
                        num_bytes=int(details["bytes"]),
                        ready_ns=begin_ns,
                        is_over="unfinished" not in details,
                    )
                )
    return tasks


def _flight(lane: int, event: dict[str, Any]) -> Flight:
    details = event["args"]
    begin_ns, end_ns = _span(event)
    sent_us = details.get("sent_after_us")
    return Flight(
        lane=lane,
        tensor=event["name"].rpartition(" @")[0],
        begin_ns=begin_ns,
        end_ns=end_ns,
        step=int(details["step"]),
        num_bytes=int(details["bytes"]),
        sent_ns=None if sent_us is None else begin_ns + round(sent_us * 1e3),
    )
