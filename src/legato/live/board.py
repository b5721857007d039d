"""The board: what is known of jobs, in a bounded memory, for whoever reads it.

A reader gets what is there, and from then on every fact as it comes. Facts of some kinds replace the one before
(`job`, `tuning`, `gantt`), others are added (`point`, `links`, `marker`): page.js does the same.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from legato.live.facts import KINDS, Fact, Marker

MAX_POINTS = 1800
"""Half an hour, at one a second."""
MAX_MARKERS = 200
MAX_LINKS = 10_000
"""Of all times together: the five minutes that the page shows, of 33 links; less of more."""

Reader = Callable[[str, str, dict[str, Any]], None]
"""Told of a job, the kind of a fact, and the fact."""


class _Job:
    def __init__(self) -> None:
        self.latest: dict[str, dict[str, Any]] = {}
        self.points: deque[dict[str, Any]] = deque(maxlen=MAX_POINTS)
        self.links: deque[dict[str, Any]] = deque()
        self.markers: deque[dict[str, Any]] = deque(maxlen=MAX_MARKERS)
        self.counts: Counter[str] = Counter()
        """Markers there have been, by kind."""

    def add(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "point":
            self.points.append(data)
        elif kind == "links":
            self.links.append(data)
            while len(self.links) > 1 and len(self.links) * len(data["links"]) > MAX_LINKS:
                self.links.popleft()
        elif kind == "marker":
            self.markers.append(data)
            self.counts[data["kind"]] += 1
        else:
            self.latest[kind] = data

    def state(self) -> dict[str, Any]:
        return {
            **self.latest,
            "points": list(self.points),
            "links": list(self.links),
            "markers": list(self.markers),
        }


class Board:
    """Of one job, or of several. Safe to use from several threads; readers are called from the one that adds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._readers: list[Reader] = []

    def add(self, job: str, fact: Fact) -> None:
        self.put(job, KINDS[type(fact)], asdict(fact))

    def put(self, job: str, kind: str, data: dict[str, Any]) -> None:
        """The same of a fact that has travelled."""
        with self._lock:
            self._jobs.setdefault(job, _Job()).add(kind, data)
            readers = list(self._readers)
        for reader in readers:
            reader(job, kind, data)

    def replace(self, job: str, state: dict[str, Any]) -> None:
        """All that another board knows of a job. After a restart, what was known before goes on."""
        fresh = _Job()
        with self._lock:
            known = self._jobs.get(job)
            points, links, markers = state["points"], state["links"], state["markers"]
            if known is not None and _run(known.latest) != _run(state):
                restart = asdict(Marker(time=_started(state), kind="restart", text="the job was started again"))
                points = [*_before(known.points, points), *points]
                links = [*_before(known.links, links), *links]
                markers = [*_before([*known.markers, restart], markers), *markers]
            for point in points:
                fresh.add("point", point)
            for each in links:
                fresh.add("links", each)
            for marker in markers:
                fresh.add("marker", marker)
            for kind in ("job", "tuning", "gantt"):
                if kind in state:
                    fresh.add(kind, state[kind])
            self._jobs[job] = fresh
            readers, whole = list(self._readers), fresh.state()
        for reader in readers:
            reader(job, "state", whole)

    def states(self) -> dict[str, dict[str, Any]]:
        """All that is known, by job."""
        with self._lock:
            return {name: job.state() for name, job in self._jobs.items()}

    def latest(self) -> dict[str, dict[str, Any]]:
        """By job, the latest fact of each kind."""
        with self._lock:
            return {
                name: {
                    **job.latest,
                    **({"point": job.points[-1]} if job.points else {}),
                    **({"links": job.links[-1]} if job.links else {}),
                    "counts": dict(job.counts),
                }
                for name, job in self._jobs.items()
            }

    def read(self, reader: Reader) -> dict[str, dict[str, Any]]:
        """All that is known; from then on the reader is told, and misses nothing."""
        with self._lock:
            self._readers.append(reader)
            return {name: job.state() for name, job in self._jobs.items()}

    def leave(self, reader: Reader) -> None:
        with self._lock:
            self._readers.remove(reader)


def _run(state: Mapping[str, Any]) -> object:
    return state.get("job", {}).get("run")


def _started(state: Mapping[str, Any]) -> float:
    return float(state.get("job", {}).get("started", 0.0))


def _before(known: Iterable[dict[str, Any]], fresh: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What comes before it: who tells of several jobs may know of the time before a restart, too."""
    return [each for each in known if not fresh or each["time"] < fresh[0]["time"]]
