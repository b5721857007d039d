"""Writers: those who keep a job's figures, or print them, beside the dashboard. Each is given every point."""

import importlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from legato.errors import InputError
from legato.live.config import LiveConfig
from legato.live.facts import Point


class Writer(Protocol):
    def write(self, point: Point) -> None:
        """Called from the monitor's thread, about once a second."""

    def close(self) -> None:
        """There are no more."""


def writers_of(config: LiveConfig) -> list[Writer]:
    """Those that were asked for."""
    writers: list[Writer] = []
    if config.progress_s is not None:
        writers.append(Progress(config.progress_s))
    if config.tensorboard is not None:
        writers.append(TensorBoard(config.tensorboard))
    if config.wandb is not None:
        writers.append(WeightsAndBiases(config.wandb))
    return writers


def scalars(point: Point) -> Iterator[tuple[str, float]]:
    """What charts are drawn of, by name: docs/live.md has the units."""
    yield "legato/step_seconds", point.step_s
    yield "legato/steps_per_second", point.steps_per_s
    yield "legato/exposed_seconds", point.exposed_s
    yield "legato/exposed_share", point.exposed_s / point.step_s if point.step_s else 0.0
    if point.bound_s is not None:
        yield "legato/bound_seconds", point.bound_s
        yield "legato/step_over_bound", point.step_s / point.bound_s if point.bound_s else 0.0
    yield "legato/queued_bytes", float(sum(num_bytes for _, num_bytes in point.queue))
    for rank in point.ranks:
        yield f"legato/rank{rank.rank}/step_seconds", rank.step_s
        yield f"legato/rank{rank.rank}/sent_bytes_per_second", rank.sent_bytes_per_s
        yield f"legato/rank{rank.rank}/received_bytes_per_second", rank.received_bytes_per_s


class Progress:
    """A line on stderr now and then."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s

    def write(self, point: Point) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            print(progress_line(point), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is kept."""


def progress_line(point: Point) -> str:
    share = point.exposed_s / point.step_s if point.step_s else 0.0
    bound = "T* not known yet"
    if point.bound_s:
        bound = f"T* {point.bound_s * 1e3:.1f} ms ({point.step_s / point.bound_s:.2f} of it)"
    return (
        f"legato: step {point.step}, {point.steps_per_s:.2f} steps/s, {point.step_s * 1e3:.1f} ms a step, "
        f"{point.exposed_s * 1e3:.1f} ms exposed ({share:.0%}), {bound}"
    )


class TensorBoard:
    """An event file in a folder, by TensorBoard's own messages. Its writer would import TensorFlow where that is
    installed, and so does torch's, which is built on it."""

    def __init__(self, folder: Path) -> None:
        self._event = _import("tensorboard.compat.proto.event_pb2", "LEGATO_TENSORBOARD").Event
        record_writer = _import("tensorboard.summary.writer.record_writer", "LEGATO_TENSORBOARD").RecordWriter
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.legato"
            self._records: Any = record_writer((folder / name).open("wb"))
        except OSError as error:
            raise InputError(f"LEGATO_TENSORBOARD is {str(folder)!r}: {error.strerror}") from None
        self._put(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, point: Point) -> None:
        event = self._event(wall_time=point.time, step=point.step)
        for name, value in scalars(point):
            event.summary.value.add(tag=name, simple_value=value)
        self._put(event)

    def close(self) -> None:
        self._records.close()

    def _put(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()


class WeightsAndBiases:
    """The script's own run, or an offline one. Steps of its charts are legato's, whatever the script counts."""

    def __init__(self, project: str) -> None:
        self._wandb: Any = _import("wandb", "LEGATO_WANDB")
        self._project = project
        self._run: Any = None
        self._is_ours = False

    def write(self, point: Point) -> None:
        if self._run is None:
            # Not before the first figures: a script that has a run of its own has made it by then.
            self._is_ours = self._wandb.run is None
            self._run = self._wandb.run or self._wandb.init(project=self._project, mode="offline", reinit="create_new")
            self._run.define_metric("legato/step")
            self._run.define_metric("legato/*", step_metric="legato/step")
        self._run.log({"legato/step": point.step, **dict(scalars(point))})

    def close(self) -> None:
        if self._is_ours:
            self._run.finish()


def _import(name: str, variable: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = variable.removeprefix("LEGATO_").lower()
        raise InputError(
            f"{variable} is set, but {name} cannot be imported ({error}); pip install 'legato[{extra}]'"
        ) from None
