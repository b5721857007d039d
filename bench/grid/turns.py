"""Turns: on every host one process trains by every system, and one system after the other has the links.

alone    ██░░░░██░░░░██           a round: a turn of each, so that what disturbs one disturbs all alike
ddp      ░░██░░░░██░░░░██
legato   ░░░░██░░░░██░░░░██
"""

import ctypes
import gc
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from bench.grid.calls import Call
from bench.grid.lineup import System
from bench.grid.systems import TIMEOUT_S, Place, make
from bench.testbed.crew import Station
from bench.testbed.launch import Launch
from legato.core import Workload

_PORT = 4400


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What every rank is told."""

    systems: Sequence[System]
    calls: Sequence[Call | None]
    """What each is to legato, where it is."""
    launches: Sequence[Launch]
    """A job for each."""
    workload: Workload
    num_workers: int
    address: str
    """Of rank 0's host."""
    num_rounds: int
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank has seen of one system."""

    peak_bytes: int
    """Memory that came with it, at most: model and gradients, what it keeps of its own, and no framework."""
    chosen: str
    """What it decided by itself."""
    turns_s: list[list[float]] = field(default_factory=list)
    """Seconds of each measured step, turn by turn."""
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of a step, all threads of this process; one figure a turn."""


def take_turns(station: Station, assignments: Sequence[Assignment]) -> None:
    """One rank; it tells the name of each system that has had a turn, and what it has seen of each assignment."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{assignments[0].address}:{_PORT}",
        rank=station.rank,
        world_size=assignments[0].num_workers,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    torch.optim.SGD([torch.zeros(1)]).zero_grad()  # imports what torch leaves for later, at nobody's expense
    for number, assignment in enumerate(assignments):
        station.tell((number, _fulfil(station, assignment)))
    station.meet()
    dist.destroy_process_group()


def _fulfil(station: Station, assignment: Assignment) -> list[Seen]:
    trainers, seen = [], []
    for system, call, launch in zip(assignment.systems, assignment.calls, assignment.launches, strict=True):
        station.meet()
        before_bytes = _forget_peak()
        trainer = make(system, call, Place(rank=station.rank, launch=launch), assignment.workload)
        _forget_peak()  # what a system tries out before it trains does not count
        trainer.turn(trainer.warm_up_steps)
        trainers.append(trainer)
        seen.append(Seen(peak_bytes=_status_bytes("VmHWM") - before_bytes, chosen=trainer.chosen))
        station.tell(system.name)
    for _ in range(assignment.num_rounds):
        for system, trainer, figures in zip(assignment.systems, trainers, seen, strict=True):
            station.meet()
            begin_s = time.process_time()
            figures.turns_s.append(trainer.turn(assignment.num_steps))
            figures.cpu_s.append((time.process_time() - begin_s) / (assignment.num_steps + 1))
            station.tell(system.name)
    for trainer in trainers:
        trainer.check()
        trainer.close()
    return seen


def _forget_peak() -> int:
    """Give free memory back and start counting anew; the answer is what is in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
