"""What watching a job costs its training: `python -m bench.watching [--out FILE]`; five minutes.

A model of the headline (4 hosts × 1 Gbit/s, layers that sleep, real gradients, `legato.torch.schedule`) is trained by
several jobs in the same processes: one that nobody watches, and one for each way of watching. They take turns:

    off          ██░░░░░░░░░░████░░
    timeline     ░░██░░░░░░░░░░░░██      a round: a turn of each; each round begins with another
    dashboard    ░░░░██░░░░░░

A process beside rank 0 reads the event stream of each dashboard, as an open page does. Every round has a ratio of its
own to its turn without a watcher; their mean is given with its 95 % confidence interval (Student's).

An emulated layer takes no longer when its host is busy, like one on an accelerator. So a second figure says how much
longer the training thread computes: where layers are computed by that thread, a step takes as much longer.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from math import exp, log
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory

import torch
from scipy.stats import t as student  # type: ignore[import-untyped]

from bench.grid import recipe
from bench.grid.calls import Call, call
from bench.grid.cell import Cell
from bench.grid.lineup import system
from bench.grid.systems import Legato, Place
from bench.report import Figure, publish
from bench.testbed import crew, goodput
from bench.testbed.launch import PORT, Launch
from bench.testbed.namespace import acquire_permission
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed
from legato.core import Workload

OFF, TIMELINE, DASHBOARD, PROGRESS, ALL = "off", "timeline", "dashboard", "progress lines", "all of them"
MODEL = "resnet50"
"""Of the headline's models the one with most layers and tensors for its time."""
NUM_ROUNDS = 8
NUM_STEPS = 4
AT_MOST_PERCENT = 1.0
_DASHBOARD_PORTS = {DASHBOARD: 8321, ALL: 8322}
_OPEN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one rank has seen of a turn."""

    steps_s: list[float]
    thread_s: float
    """Processor time of the training thread, for a step."""
    process_s: float
    """Of all threads of the process."""


Turns = dict[str, list[Turn]]
"""By job, one a round."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of rounds, and where it is in 95 of 100 cases."""

    mean: float
    low: float
    high: float


def watched(folder: Path) -> dict[str, dict[str, str]]:
    """The variables that turn each way of watching on."""
    timeline = {name: {"LEGATO_TIMELINE": str(timeline_of(folder, name))} for name in (TIMELINE, ALL)}
    dashboard = {name: {"LEGATO_DASHBOARD": f"127.0.0.1:{port}"} for name, port in _DASHBOARD_PORTS.items()}
    progress = {"LEGATO_PROGRESS_S": "1"}
    return {
        OFF: {},
        TIMELINE: timeline[TIMELINE],
        DASHBOARD: dashboard[DASHBOARD],
        PROGRESS: progress,
        ALL: timeline[ALL] | dashboard[ALL] | progress,
    }


def timeline_of(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(' ', '-')}.json"


def train(
    station: crew.Station, launches: Mapping[str, Launch], asked: Call, workload: Workload, rounds: int, steps: int
) -> Turns:
    """One rank of all jobs. Rank 0 tells of each dashboard that can be opened."""
    torch.set_num_threads(1)
    trainers: dict[str, Legato] = {}
    for name, launch in launches.items():
        station.meet()
        trainers[name] = Legato(Place(rank=station.rank, launch=launch), workload, asked)
        trainers[name].turn(trainers[name].warm_up_steps)
        if station.rank == 0 and name in _DASHBOARD_PORTS:
            station.tell(name)
    turns: Turns = {name: [] for name in trainers}
    for number in range(rounds):
        for name in _rotated(list(trainers), number):
            station.meet()
            turns[name].append(_turn(trainers[name], steps))
    for trainer in trainers.values():
        station.meet()
        trainer.check()
        trainer.close()
    return turns


def _turn(trainer: Legato, num_steps: int) -> Turn:
    begin = time.thread_time(), time.process_time()
    steps_s = trainer.turn(num_steps)
    end = time.thread_time(), time.process_time()
    thread_s, process_s = ((after - before) / (num_steps + 1) for before, after in zip(begin, end, strict=True))
    return Turn(steps_s=steps_s, thread_s=thread_s, process_s=process_s)


def _rotated(names: Sequence[str], by: int) -> list[str]:
    place = by % len(names)
    return [*names[place:], *names[:place]]


def read_events(port: int, line: "Connection[int, None]") -> None:
    """What an open page reads: tells when the first event is there and, when the stream has ended, how many were."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/events")
    num_events = 0
    with suppress(HTTPException, OSError):  # however the stream ends
        for text in connection.getresponse():
            if text.startswith(b"data:"):
                num_events += 1
                if num_events == 1:
                    line.send(1)
    line.send(num_events)


def measure(cell: Cell, rounds: int, steps: int) -> Iterator[Figure]:
    with (
        Testbed(hosts=cell.hosts, gbps=cell.line_gbps) as testbed,
        surroundings(),
        TemporaryDirectory(prefix="legato-") as folder,
    ):
        links = goodput.measure(testbed)
        workload = cell.workload(links.bytes_per_s)
        asked = call(system("legato"), cell, workload, links.bytes_per_s)
        assert asked is not None
        ways = watched(Path(folder))
        launches = {
            name: Launch(num_workers=cell.hosts, conductor=testbed.address(0), port=PORT + place, variables=variables)
            for place, (name, variables) in enumerate(ways.items())
        }
        readers: dict[str, Connection[None, int]] = {}

        def open_page(_: int, name: str) -> None:
            readers[name], theirs = Pipe(duplex=False)
            testbed.spawn(0, read_events, _DASHBOARD_PORTS[name], theirs)
            theirs.close()
            _hear(readers[name], name)

        ranks = crew.follow(testbed, range(cell.hosts), open_page, train, launches, asked, workload, rounds, steps)
        num_events = {name: _hear(line, name) for name, line in readers.items()}
        sizes = {name: _whole_timeline_bytes(timeline_of(Path(folder), name)) for name in (TIMELINE, ALL)}
    for name in ways:
        if name != OFF:
            details: dict[str, float | str] = {}
            if name in num_events:
                details["events read"] = num_events[name]
            if name in sizes:
                details["timeline MB"] = sizes[name] / 1e6
            yield from figures(f"{cell.model}, {cell.hosts} × {cell.gbps:g} Gbit/s: {name}", ranks, name, details)


def _hear(line: "Connection[None, int]", name: str) -> int:
    if not line.poll(_OPEN_S):
        raise TimeoutError(f"nothing was read of the page of the job with {name} in {_OPEN_S:g} s")
    return line.recv()


def _whole_timeline_bytes(path: Path) -> int:
    text = path.read_text()
    if "incomplete" in text:
        raise RuntimeError("the timeline was full before the end, and cost nothing from then on: ask for fewer steps")
    return len(text)


def figures(case: str, ranks: Sequence[Turns], name: str, details: Mapping[str, float | str]) -> Iterator[Figure]:
    """How much longer steps take, and how much longer the training thread computes for one."""
    off, on = ([[rank[job][number] for rank in ranks] for number in range(len(ranks[0][job]))] for job in (OFF, name))
    off_s, on_s = ([_step_s(turn) for turn in turns] for turns in (off, on))
    ratio = estimate([log(with_it / without) for with_it, without in zip(on_s, off_s, strict=True)])
    yield Figure(
        section="watching",
        case=f"{case}: a step takes longer by",
        value=_percent(ratio.mean),
        unit="%",
        at_most=AT_MOST_PERCENT,
        details={
            "low": _percent(ratio.low),
            "high": _percent(ratio.high),
            "rounds": len(off_s),
            "off ms": median(off_s) * 1e3,
            "on ms": median(on_s) * 1e3,
            **details,
        },
    )
    more = estimate(
        [
            100 * (_mean_s(with_it, "thread_s") - _mean_s(without, "thread_s")) / step_s
            for with_it, without, step_s in zip(on, off, off_s, strict=True)
        ]
    )
    all_threads_s = fmean(_mean_s(turn, "process_s") for turn in on) - fmean(_mean_s(turn, "process_s") for turn in off)
    yield Figure(
        section="watching",
        case=f"{case}: processor time of the training thread, more of a step",
        value=more.mean,
        unit="%",
        at_most=AT_MOST_PERCENT,
        details={"low": more.low, "high": more.high, "all threads of a rank, ms a step": all_threads_s * 1e3},
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Of what rounds have shown; two at least."""
    mean = fmean(values)
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def _percent(logarithm: float) -> float:
    return 100 * (exp(logarithm) - 1)


def _step_s(turn: Sequence[Turn]) -> float:
    """Of all ranks."""
    return median(second for rank in turn for second in rank.steps_s)


def _mean_s(turn: Sequence[Turn], name: str) -> float:
    return fmean(getattr(rank, name) for rank in turn)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every target is met, 1 otherwise; 77 where hosts cannot be made."""
    headline = {cell.model: cell for cell in recipe.read("headline").cells()}
    parser = argparse.ArgumentParser(
        prog="python -m bench.watching", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=headline, default=MODEL, help="of the headline (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, help="two or more")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="measured steps of a turn, after one that is not")
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    acquire_permission()
    return publish(measure(headline[arguments.model], arguments.rounds, arguments.steps), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
