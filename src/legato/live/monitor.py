"""The monitor: one rank's part in what a job tells of itself; on rank 0 also the board, and who reads it."""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from legato.errors import InputError, LegatoError
from legato.live.board import Board
from legato.live.config import LiveConfig
from legato.live.facts import (
    Figures,
    Gantt,
    JobFacts,
    LinkPoint,
    Links,
    LinkTraffic,
    Marker,
    MarkerKind,
    Point,
    RankPoint,
    Traffic,
    is_figures,
)
from legato.live.log_markers import LogMarkers
from legato.live.recorder import Rates, Recorder
from legato.live.tuning import TuningFacts
from legato.live.writers import Writer, writers_of
from legato.transports.native.group import NativeGroup
from legato.transports.rendezvous.messages import WindowReported

if TYPE_CHECKING:
    from legato.live.endpoint import Endpoint

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""How often figures are made of steps."""
_STALE_S = 10.0
"""Figures of other ranks that are older count no more for a point."""


Known = Mapping[int, tuple[Figures, Rates]]
"""The latest of each rank, by rank."""


class Monitor:
    """Made on every rank that is to be told of. Nothing here is waited for by training, but `close`."""

    def __init__(self, config: LiveConfig, rank: int, size: int) -> None:
        self.recorder = Recorder(rank)
        self.inbox: Inbox | None = None
        """Where reports of other ranks are sorted; None while there is no group."""
        self.gantt: Callable[[], Gantt | None] = lambda: None
        """The last step of a timeline, where one is taken."""
        self.tuning: TuningFacts | None = None
        """On rank 0: what the tuner tells."""
        self._group: NativeGroup | None = None
        self._closed = threading.Event()
        self._hub = _Hub(config, size) if rank == 0 else None
        if self._hub is not None:
            self.tuning = TuningFacts(self._hub.mark)
        self._thread = threading.Thread(target=self._run, name="legato-monitor", daemon=True)
        self._thread.start()

    def follow(self, group: NativeGroup) -> None:
        """The others are reached, and traffic is counted, through this group."""
        self._group = group
        self.recorder.traffic = lambda: _traffic(group)
        self.inbox = Inbox(group)

    def describe(self, about: str, tensors: tuple[tuple[str, int], ...] = ()) -> None:
        """What is on, and the gradients by priority, once that is known."""
        if self._hub is not None:
            self._hub.describe(about, tensors)

    def close(self, *, failed: bool = False) -> None:
        """The job is over. Can be called twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join()
        if self._hub is not None:
            error = None if self._group is None else self._group.session.member.error
            self._hub.close(failed=failed, error=error)

    # ---- in the thread ----

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            try:
                self._tick()
            except Exception:  # noqa: BLE001 (what only looks on must not end anything)
                _log.exception("the dashboard's figures are no longer made")
                return
        with contextlib.suppress(LegatoError):
            self._tick()

    def _tick(self) -> None:
        figures = self.recorder.figures()
        if self._hub is None:
            if figures is not None and self._group is not None:
                with contextlib.suppress(LegatoError):  # the job is over, and whoever waits for a sum hears why
                    self._group.session.member.report(figures.step, figures.to_json())
            return
        others = [] if self.inbox is None else self.inbox.take_figures()
        assert self.tuning is not None
        self._hub.tell(figures, others, self.tuning, self.gantt)


def _traffic(group: NativeGroup) -> Traffic:
    engine = group.session.engine
    counters = engine.statistics()
    return Traffic(
        sent_bytes=counters["bytes_sent"],
        received_bytes=counters["bytes_received"],
        shared_bytes=counters["bytes_shared"],
        in_flight_bytes=counters["in_flight_bytes"],
        links=tuple(
            LinkTraffic(
                peer=peer,
                shared=shared_sent + shared_received > 0,
                sent_bytes=sent + shared_sent,
                received_bytes=received + shared_received,
            )
            for peer, sent, received, shared_sent, shared_received in engine.links()
        ),
    )


class Inbox:
    """Reports of other ranks: the tuner's are the tuner's, figures are the monitor's, whoever takes them first."""

    def __init__(self, group: NativeGroup) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._figures: list[Figures] = []
        self._others: list[WindowReported] = []

    def take_figures(self) -> list[Figures]:
        with self._lock:
            self._sort()
            figures, self._figures = self._figures, []
            return figures

    def take_others(self) -> list[WindowReported]:
        with self._lock:
            self._sort()
            others, self._others = self._others, []
            return others

    def _sort(self) -> None:
        for told in self._group.session.member.take_reports():
            if not is_figures(told.text):
                self._others.append(told)
                continue
            try:
                self._figures.append(Figures.from_json(told.text))
            except InputError as error:
                _log.info("rank %d: %s", told.rank, error)


class _Hub:
    """What only rank 0 does: brings figures together, and has them served and written."""

    def __init__(self, config: LiveConfig, size: int) -> None:
        self.board = Board()
        started = time.time()
        script = Path(sys.argv[0]).name or "python"
        host = socket.gethostname()
        self._job = f"{script}@{host}"
        self._facts = JobFacts(
            name=script, host=host, run=f"{os.getpid()}-{started:.3f}", started=started, workers=size
        )
        self.board.add(self._job, self._facts)
        self._latest: dict[int, tuple[float, Figures, Rates]] = {}
        """The latest of each rank, and when it came."""
        self._markers = LogMarkers(self._warned)
        self._writers: list[Writer] = writers_of(config)
        self._endpoint = _endpoint(self.board, config)
        self.mark("start", f"{script} started on {size} worker{'s' if size > 1 else ''}", None)

    def describe(self, about: str, tensors: tuple[tuple[str, int], ...]) -> None:
        self._facts = replace(self._facts, about=about, tensors=tensors)
        self.board.add(self._job, self._facts)

    def mark(self, kind: MarkerKind, text: str, step: int | None) -> None:
        self.board.add(self._job, Marker(time=time.time(), kind=kind, text=text, step=step))

    def tell(
        self, own: Figures | None, others: list[Figures], tuning: TuningFacts, gantt: Callable[[], Gantt | None]
    ) -> None:
        now_s = time.monotonic()
        for figures in [*others, *([] if own is None else [own])]:
            rates = self._latest[figures.rank][2] if figures.rank in self._latest else Rates()
            rates.tell(figures)
            self._latest[figures.rank] = (now_s, figures, rates)
        if (state := tuning.take()) is not None:
            self.board.add(self._job, state)
        if own is None:
            return
        known = {
            rank: (figures, rates)
            for rank, (when_s, figures, rates) in sorted(self._latest.items())
            if now_s - when_s < _STALE_S
        }
        point = _point(own, known, tuning.bound_s)
        self.board.add(self._job, point)
        links = link_points(known, self._facts.workers)
        if links:
            self.board.add(self._job, Links(time=point.time, links=links))
        for writer in self._writers:
            writer.write(point)
        if (picture := gantt()) is not None:
            self.board.add(self._job, picture)

    def close(self, *, failed: bool, error: LegatoError | None) -> None:
        self._markers.close()
        if failed:
            self.mark("fault", f"the job ended: {error or 'this rank gave up'}", None)
        else:
            self.mark("end", "training is over", None)
        for writer in self._writers:
            writer.close()
        if self._endpoint is not None:
            self._endpoint.close()

    def _warned(self, text: str) -> None:
        self.mark("fault", text, None)


def _endpoint(board: Board, config: LiveConfig) -> "Endpoint | None":
    """Where it is asked for. Training goes on without it where its port is taken."""
    if config.dashboard is None:
        return None
    from legato.live.endpoint import CannotListenError, Endpoint  # whoever asks for no dashboard needs no server

    try:
        endpoint = Endpoint(board, *config.dashboard, token=config.token)
    except CannotListenError as error:
        _log.warning("%s; training goes on without it", error)
        return None
    _log.info("dashboard at %s", endpoint.url)
    return endpoint


def _point(own: Figures, known: Known, bound_s: float | None) -> Point:
    return Point(
        time=time.time(),
        step=own.step,
        step_s=max(figures.step_s for figures, _ in known.values()),
        steps_per_s=own.num_steps / own.seconds if own.seconds else 0.0,
        exposed_s=median(figures.exposed_s for figures, _ in known.values()),
        bound_s=bound_s,
        ranks=tuple(_rank_point(*each) for each in known.values()),
        queue=own.queue,
    )


def link_points(known: Known, num_workers: int) -> tuple[LinkPoint, ...]:
    """By rank and peer."""
    return tuple(
        LinkPoint(
            rank=rank,
            peer=str(link.peer) if link.peer < num_workers else f"server {link.peer - num_workers}",
            shared=link.shared,
            sent_bytes=link.sent_bytes,
            received_bytes=link.received_bytes,
            sent_bytes_per_s=round(sent),
            received_bytes_per_s=round(received),
        )
        for rank, (figures, rates) in known.items()
        for link in figures.traffic.links
        for sent, received in [rates.links_per_s.get(link.peer, (0.0, 0.0))]
    )


def _rank_point(figures: Figures, rates: Rates) -> RankPoint:
    sent, received, shared = rates.per_s
    traffic = figures.traffic
    return RankPoint(
        rank=figures.rank,
        step=figures.step,
        step_s=figures.step_s,
        exposed_s=figures.exposed_s,
        sent_bytes=traffic.sent_bytes,
        received_bytes=traffic.received_bytes,
        shared_bytes=traffic.shared_bytes,
        sent_bytes_per_s=round(sent),
        received_bytes_per_s=round(received),
        shared_bytes_per_s=round(shared),
        in_flight_bytes=traffic.in_flight_bytes,
    )
