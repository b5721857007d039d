"""The timeline of a job: on from `start` to `stop`, one file for all ranks.

start ─── meet the others: clocks aligned ─── notes, in memory ─── stop: all ranks' events to rank 0, which writes
                                                                    └─ alone, after a failure: to a file of its own
"""

import logging
import threading
import time
import zlib
from pathlib import Path

import numpy as np

from legato.errors import LegatoError
from legato.observe import chrome
from legato.observe.clock import Alignment, Gatherer, align
from legato.observe.events import engine_moments
from legato.observe.latest import LatestStep, latest_step
from legato.observe.notes import Moment, Notes, Stretch, TimelineConfig, What, Work
from legato.observe.spans import spans as spans_of
from legato.transports.native.group import NativeGroup

_log = logging.getLogger(__name__)


class Timeline:
    """Belongs to one rank of a job. Every rank starts and stops it, like a collective operation.

    Off, it costs whoever asks `on` that question; the engine, one comparison for each event.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._config: TimelineConfig | None = None
        self._notes: Notes | None = None
        self._alignment: Alignment | None = None
        self._group: Gatherer | None = None
        self._native: NativeGroup | None = None
        self._collecting = threading.Lock()
        """Of events between the engine and the notes."""

    @property
    def on(self) -> bool:
        return self._notes is not None

    @property
    def has_met(self) -> bool:
        """Whether there are others, and it knows them."""
        return self._group is not None

    def start(self, config: TimelineConfig) -> None:
        """Take notes from now on; a timeline that is on already is stopped first."""
        self.stop()
        self._config, self._notes = config, Notes(config)
        if self._group is not None:
            self._alignment = align(self._group)
        if self._native is not None:
            self._trace(self._native, config)

    def stop(self, *, together: bool = True) -> None:
        """Write what has been seen; with all ranks into one file, or each for itself. Nothing, if it is off."""
        config, notes = self._config, self._notes
        if config is None or notes is None:
            return
        with self._collecting:
            self._config = self._notes = None
            if self._native is not None:
                self._native.session.engine.set_trace(0, 0, 0)
                self._take(self._native, notes)
        events = self._events(notes)
        self._alignment = None
        if self._size == 1:
            _write(config.path, [events])
        elif together and self._group is not None:
            self._write_together(self._group, config.path, events)
        else:
            self._write_alone(config.path, events)

    def meet(self, group: Gatherer) -> None:
        """These are the others: every rank calls it at the same place."""
        self._group = group
        if self.on:
            self._alignment = align(group)

    def follow(self, group: NativeGroup) -> None:
        """The same, with a group whose engine has something to tell."""
        self._native = group
        self.meet(group)
        if self._config is not None:
            self._trace(group, self._config)

    def leave(self) -> None:
        """The others are gone."""
        self._group = self._native = None

    # ---- notes; nothing is kept while it is off ----

    def moment(self, moment: Moment) -> None:
        if self._notes is not None:
            self._notes.moment(moment)

    def applied(self, tensors: tuple[str, ...], step: int) -> None:
        self.moment(Moment(time.monotonic_ns(), What.APPLIED, tensors, step))

    def stretch(self, work: Work, name: str, begin_ns: int, step: int, end_ns: int | None = None) -> None:
        if self._notes is not None:
            self._notes.stretch(Stretch(work, name, begin_ns, time.monotonic_ns() if end_ns is None else end_ns, step))

    # ---- while it is on ----

    def latest(self) -> LatestStep | None:
        """The last step that is whole, as this rank has seen it so far; None where there is none. For a thread that
        looks on."""
        with self._collecting:
            notes, group = self._notes, self._native
            if notes is None:
                return None
            if group is not None:
                self._take(group, notes)
        return latest_step(notes)

    # ---- engine ----

    def _trace(self, group: NativeGroup, config: TimelineConfig) -> None:
        group.session.engine.take_events()
        group.session.engine.set_trace(config.first_step, config.last_step, config.max_notes)

    def _take(self, group: NativeGroup, notes: Notes) -> None:
        """What the engine has to tell since the last time."""
        events = group.session.engine.take_events()

        def name_of(tensor: int) -> str:
            definition = group.session.player.definition(tensor)
            return f"tensor {tensor}" if definition is None else definition.tensor.name

        notes.is_full |= len(events) >= notes.config.max_notes
        for moment in engine_moments(events, name_of):
            notes.moment(moment)

    # ---- files ----

    def _events(self, notes: Notes) -> str:
        alignment, labels = self._alignment, []
        if self._rank:
            error = f"within {alignment.error_ns / 1e3:.0f} µs of rank 0's" if alignment else "its own"
            labels.append(f"clock {error}")
        if notes.is_full:
            labels.append("incomplete: there was no room for all notes")
        label = ", ".join(labels)
        shift_ns = -alignment.ahead_ns if alignment else 0
        title = f"rank {self._rank}"
        return chrome.events(self._rank, title, spans_of(notes), shift_ns=shift_ns, label=label)

    def _write_together(self, group: Gatherer, path: Path, events: str) -> None:
        try:
            ranks = _gather(group, events)
        except (LegatoError, RuntimeError, ValueError) as error:
            _log.warning("the timeline of each rank gets a file of its own: %s", error)
            self._write_alone(path, events)
            return
        if self._rank == 0:
            _write(path, ranks)

    def _write_alone(self, path: Path, events: str) -> None:
        _write(path.with_name(f"{path.stem}.rank{self._rank}{path.suffix}"), [events])


def _gather(group: Gatherer, text: str) -> list[str]:
    """Every rank's text, compressed on its way."""
    packed = zlib.compress(text.encode())
    everything = group.allgather("legato/timeline", np.frombuffer(packed, np.uint8)).tobytes()
    texts = []
    while everything:
        one = zlib.decompressobj()  # knows where it ends
        texts.append(one.decompress(everything).decode())
        everything = one.unused_data
    return texts


def _write(path: Path, ranks: list[str]) -> None:
    """All or nothing: whoever opens the file finds a whole one."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.write_text(chrome.document(ranks))
        unfinished.replace(path)
    except OSError as error:
        _log.warning("the timeline cannot be written to %s: %s", path, error.strerror)
        return
    _log.info("timeline written to %s", path)
