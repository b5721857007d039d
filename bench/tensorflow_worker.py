"""One process of bench/tensorflow_testbed.py: on every host each system has one, and they take turns."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.testbed.crew import Station
from bench.testbed.launch import Launch
from legato.core import Workload

WARM_UP_STEPS = 3
"""The first one traces, the second and third settle plans and connections."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What every process is told of one model."""

    workload: Workload
    launches: Sequence[Launch]
    """A job for each system."""
    num_rounds: int
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one process has seen of its system, with one model."""

    system: str
    steps_s: list[float]
    """Of every measured step, turn by turn."""
    cpu_s: float
    """Processor time of a step, all threads of the process."""


def take_turns(
    station: Station, systems: Sequence[str], hosts: Sequence[str], assignments: Sequence[Assignment]
) -> None:
    """One system after the other has the links; the others wait.

    Tells the number of the model with the name of a system that has had a turn, or with what was seen of it.
    """
    # Not above: processes that only load links import this module too, and TensorFlow takes seconds of both cores.
    from bench.tensorflow_systems import Trainer, make

    mine, rank = divmod(station.rank, len(hosts))
    for number, assignment in enumerate(assignments):
        trainer: Trainer | None = None
        for place, system in enumerate(systems):
            station.meet()
            if place == mine:
                trainer = make(system, rank, assignment.workload, assignment.launches[place], hosts)
                trainer.turn(WARM_UP_STEPS)
                station.tell((number, system))
        assert trainer is not None
        steps_s = []
        cpu_s = 0.0
        for _ in range(assignment.num_rounds):
            for place, system in enumerate(systems):
                station.meet()
                if place == mine:
                    begin_s = time.process_time()
                    steps_s += trainer.turn(assignment.num_steps)
                    cpu_s += time.process_time() - begin_s
                    station.tell((number, system))
        trainer.check()
        trainer.close()
        taken = assignment.num_rounds * (assignment.num_steps + 1)
        station.tell((number, Seen(system=systems[mine], steps_s=steps_s, cpu_s=cpu_s / taken)))
    station.meet()  # nobody leaves a cluster that others are still in
