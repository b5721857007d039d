"""A worker that is three times slower than the others: what it costs them in step with it, ahead of it, without it.

Slow is one worker all the time, or each in its turn. Throughput is what all workers together get done in a given time,
relative to waiting for the slowest in every step.
"""

import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

import legato.torch as lg
from bench.report import Figure
from bench.sleeper import SleepingLayer, sleeping_model
from bench.testbed import crew
from bench.testbed.testbed import Testbed
from legato.core import Layer, Workload

NUM_WORKERS, GBPS = 4, 1.0
SLOWER = 3
STEP_S = 0.06
"""Computing of a worker that is not slow."""
WORKLOAD = Workload(
    name="four layers", layers=tuple(Layer(f"layer{i}", 500_000, STEP_S / 12, STEP_S / 6) for i in range(4))
)
TURN_S = 2 * SLOWER * STEP_S
"""How long each worker is slow in its turn: two of its slow steps."""
WINDOW_S = 40 * SLOWER * STEP_S
_PORT = 4700


@dataclass(frozen=True, kw_only=True)
class Case:
    """Who is slow, and how closely the workers stay together."""

    who: str
    """`one` worker all the time, or each in its `turn`."""
    staleness: int = 0
    backups: int = 0

    def is_slow(self, rank: int, elapsed_s: float) -> bool:
        if self.who == "one":
            return rank == NUM_WORKERS - 1
        return rank == int(elapsed_s / TURN_S) % NUM_WORKERS

    def words(self) -> str:
        who = "one worker" if self.who == "one" else "each worker in its turn"
        how = f"backups {self.backups}" if self.backups else f"staleness {self.staleness}"
        return f"{who} {SLOWER}× slower, {how}"


CASES = [
    Case(who="one"),
    Case(who="one", staleness=4),
    Case(who="one", staleness=16),
    Case(who="one", backups=1),
    Case(who="turn"),
    Case(who="turn", staleness=4),
    Case(who="turn", backups=1),
]


@dataclass
class Steps:
    """When a worker had taken each of its steps, and when that was over; from the common beginning, in seconds."""

    taken_s: list[float] = field(default_factory=list)
    finished_s: list[float] = field(default_factory=list)


def measure() -> Iterator[Figure]:
    with Testbed(hosts=NUM_WORKERS, gbps=GBPS) as testbed:
        ranks = crew.run(testbed, range(NUM_WORKERS), train, testbed.address(0))
    synchronous: dict[str, float] = {}
    for index, case in enumerate(CASES):
        steps = [rank[index] for rank in ranks]
        per_s = sum(len(each.finished_s) for each in steps) / max(each.finished_s[-1] for each in steps)
        synchronous.setdefault(case.who, per_s)  # the first of each kind
        yield Figure(
            section="stragglers",
            case=f"{case.words()}: throughput over synchronous",
            value=per_s / synchronous[case.who],
            unit="×",
            details={"steps/s": per_s, "steps": ", ".join(str(len(each.finished_s)) for each in steps)},
        )
        if case.staleness:
            yield Figure(
                section="stragglers",
                case=f"{case.words()}: the furthest ahead that anybody got",
                value=furthest_ahead(steps),
                unit="steps",
                at_most=case.staleness,
            )


def furthest_ahead(steps: Sequence[Steps]) -> int:
    """The most steps that a worker had finished beyond what another had taken at that time."""
    return max(
        number - bisect_right(other.taken_s, when_s)
        for each in steps
        for number, when_s in enumerate(each.finished_s, start=1)
        for other in steps
    )


def train(station: crew.Station, conductor: str) -> list[Steps]:
    """One rank: every case in turn."""
    torch.set_num_threads(1)
    os.environ.update(crew.torchrun_environment(station.rank, NUM_WORKERS, conductor, _PORT), LEGATO_KEY=crew.KEY)
    lg.init()
    results = [_train(station, case) for case in CASES]
    lg.shutdown()
    return results


def _train(station: crew.Station, case: Case) -> Steps:
    model = sleeping_model(WORKLOAD, value=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lg.schedule(model, optimizer, tuner="off", staleness=case.staleness, backups=case.backups)
    steps = Steps()
    begin_s = station.meet()
    while _goes_on(case, steps, time.monotonic() - begin_s):
        _set_pace(model, SLOWER if case.is_slow(station.rank, time.monotonic() - begin_s) else 1)
        optimizer.zero_grad()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        steps.taken_s.append(time.monotonic() - begin_s)
        optimizer.step()
        steps.finished_s.append(time.monotonic() - begin_s)
    lg.unschedule(model)
    return steps


def _goes_on(case: Case, steps: Steps, elapsed_s: float) -> bool:
    """Who is in step must end with the others: after as many steps as the slowest takes in the time."""
    if case.staleness:
        return elapsed_s < WINDOW_S
    return len(steps.finished_s) < round(WINDOW_S / (SLOWER * STEP_S))


def _set_pace(model: torch.nn.Sequential, slower: int) -> None:
    for layer, shape in zip(model, WORKLOAD.layers, strict=True):
        assert isinstance(layer, SleepingLayer)
        layer.forward_s, layer.backward_s = slower * shape.forward_s, slower * shape.backward_s
