"""Tuning while training runs, on a network that changes: `python -m bench.live grid converge bandwidth jobs --grid F`.

ResNet50's profile on 4 hosts: layers that sleep (bench/sleeper.py), trained through `legato.torch.schedule` with the
plan's sizes, and with `tuner="twin"` or none. `grid` measures plans at every bandwidth that the others use and keeps
them in the file; from it come the best plan, the best static one, what Bayesian optimisation finds (ByteScheduler's
procedure on the measured times), and the oracle, which changes the plan in the step in which the network changes. All
of these are then run, one after the other, and the tuner. Where nobody tunes, plans change in mid-run as a tuner
changes them: all ranks agree on one for a step to come.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

import legato.torch as lg
from bench.report import Figure, publish
from bench.sleeper import sleeping_model, take_step
from bench.testbed import crew
from bench.testbed.launch import Launch
from bench.testbed.link import LinkShape
from bench.testbed.namespace import acquire_permission
from bench.testbed.surroundings import surroundings
from bench.testbed.testbed import Testbed, shape_egress
from legato.core import Workload
from legato.job import Job
from legato.sim.zoo import workload
from legato.testing.log import said
from legato.tuning.candidate import Candidate, Space
from legato.tuning.search.bayes import Bayes
from legato.tuning.statistics import Statistics

KIB, MIB = 1 << 10, 1 << 20
NUM_HOSTS = 4
NUM_BYTES = 25_000_000
HIGH, LOW = 1.0, 0.3
"""Gbit/s: the paper's 10 and 3, scaled like the model."""
COMPUTE_S = 0.315
"""Of a step: as long as communication at 1 Gbit/s."""
SPACE = Space(
    policies=("bytescheduler",),
    partition_bytes=(64 * KIB, 256 * KIB, MIB, 2 * MIB, 8 * MIB),
    credit_parts=(1, 2, 4, 16),
)
GRID_STEPS = 2
"""Measured for each plan of the grid, after one that is not."""
STARTS = (Candidate("bytescheduler", 2 * MIB, 4 * MIB), Candidate("bytescheduler", 8 * MIB, 24 * MIB))
"""AutoByte's: ⟨2 MB, 2×⟩ and ⟨8 MB, 3×⟩."""
DEFAULT = Candidate("bytescheduler", 256 * KIB, 16 * 256 * KIB)
PERIOD = 20
"""Steps after which bandwidth changes, or another job arrives."""
WARM_UP = 50
"""Steps before a run on a network that changes: a job that has been training for a while."""

Table = dict[Candidate, float]
"""Seconds of a step under each plan."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run."""

    name: str
    gbps: tuple[float, ...]
    """Of each step."""
    plans: tuple[Candidate, ...]
    """What each step runs; of a tuned run, only the first counts."""
    tuner: str = "off"
    model: str = "resnet50"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rank has seen of a run."""

    steps_s: list[float]
    log: list[str]


def model(name: str) -> Workload:
    shape = workload(name)
    return shape.scaled(bytes_by=NUM_BYTES / shape.num_bytes, time_by=COMPUTE_S / shape.compute_s)


def train(station: crew.Station, address: str, runs: Sequence[Run]) -> list[Outcome]:
    """One rank of several runs, one after the other, each a job of its own."""
    torch.set_num_threads(1)
    outcomes = []
    for run in runs:
        station.meet()
        launch = Launch(num_workers=NUM_HOSTS, conductor=address)
        with said("legato.torch.tuning.live") as lines, launch.job(station.rank) as job:
            outcomes.append(Outcome(steps_s=_train(station, job, run), log=lines))
    return outcomes


def _train(station: crew.Station, job: Job, run: Run) -> list[float]:
    emulated = model(run.model)
    network = sleeping_model(emulated, 1.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    plan = run.plans[0]
    lg.schedule(
        network,
        optimizer,
        transport="native",
        policy=plan.policy,
        partition_bytes=plan.partition_bytes,
        credit_bytes=plan.credit_bytes,
        tuner=run.tuner,
        job=job,
    )
    steps_s = []
    shaped = 0.0
    end_s = time.monotonic()
    for step, (gbps, wanted) in enumerate(zip(run.gbps, run.plans, strict=True)):
        if gbps != shaped or wanted != plan:
            if gbps != shaped:
                shape_egress("eth0", LinkShape(gbps=gbps), "change")
            if wanted != plan and station.rank == 0:
                job.group.set_plan(replace(wanted.plan(emulated.tensors), flat=False), step)
            shaped, plan = gbps, wanted
            station.meet()
            end_s = time.monotonic()  # what the testbed did is not the step's
        take_step(network, optimizer)
        steps_s.append(time.monotonic() - end_s)
        end_s = time.monotonic()
    return steps_s


def run_all(testbed: Testbed, runs: Sequence[Run]) -> list[Outcome]:
    """What rank 0 saw of each run, with the mean of all ranks' times."""
    with surroundings():
        ranks = crew.run(testbed, range(NUM_HOSTS), train, testbed.address(0), runs)
    return [
        Outcome(
            steps_s=[statistics.mean(times) for times in zip(*(each.steps_s for each in run), strict=True)],
            log=run[0].log,
        )
        for run in zip(*ranks, strict=True)
    ]


# ---- the grid ----


def plans_at(gbps: float) -> list[Candidate]:
    """What the grid measures: everything at the ends; between them the largest window, which is good enough at both."""
    largest = [SPACE.at(0, place, -1) for place in range(len(SPACE.partition_bytes))]
    return list(SPACE) if gbps in (HIGH, LOW) else largest


def measure_grid(testbed: Testbed, bandwidths: Sequence[float]) -> dict[float, Table]:
    """Every plan, once, at each bandwidth."""
    runs = [plans_in_turn(plans_at(gbps), gbps) for gbps in bandwidths]
    return {
        gbps: times_of(plans_at(gbps), outcome)
        for gbps, outcome in zip(bandwidths, run_all(testbed, runs), strict=True)
    }


def plans_in_turn(plans: Sequence[Candidate], gbps: float, model: str = "resnet50") -> Run:
    """A run that gives each plan some steps, and the first of them three more."""
    steps = [*[plans[0]] * 3, *(plan for plan in plans for _ in range(GRID_STEPS + 1))]
    return Run(name=f"{model} at {gbps:g}", gbps=(gbps,) * len(steps), plans=tuple(steps), model=model)


def times_of(plans: Sequence[Candidate], outcome: Outcome) -> Table:
    """What a step took under each plan, in such a run; a plan's first step counts for the one before."""
    measured = outcome.steps_s[3:]
    return {
        plan: statistics.mean(measured[place * (GRID_STEPS + 1) + 1 : (place + 1) * (GRID_STEPS + 1)])
        for place, plan in enumerate(plans)
    }


def best_static(tables: Mapping[float, Table], gbps: Sequence[float]) -> Candidate:
    """Of all plans that were measured throughout, the one with the least time over the whole run."""
    plans = [plan for plan in SPACE if all(plan in tables[each] for each in gbps)]
    return min(plans, key=lambda plan: sum(tables[each][plan] for each in gbps))


def oracle(tables: Mapping[float, Table], gbps: Sequence[float]) -> tuple[Candidate, ...]:
    """The best plan of each step."""
    best = {each: min(table, key=table.__getitem__) for each, table in tables.items()}
    return tuple(best[each] for each in gbps)


def bayes(table: Table) -> Candidate:
    """What ByteScheduler's procedure finds where steps take these times."""
    tuner = Bayes(SPACE)
    while not tuner.settled:
        asked = tuner.ask()
        tuner.tell(
            Statistics(
                candidate=asked,
                iteration_s=table[asked],
                workload=model("resnet50"),
            )
        )
    return tuner.ask()


# ---- sections ----


def converge(testbed: Testbed, tables: Mapping[float, Table]) -> Iterator[Figure]:
    """From AutoByte's two starts to the grid's optimum."""
    table = tables[HIGH]
    best = min(table, key=table.__getitem__)
    num_steps = 70
    runs = [
        Run(name="the grid's best", gbps=(HIGH,) * 30, plans=(best,) * 30),
        *(Run(name=str(start), gbps=(HIGH,) * num_steps, plans=(start,) * num_steps, tuner="twin") for start in STARTS),
    ]
    outcomes = run_all(testbed, runs)
    best_s = statistics.median(outcomes[0].steps_s[5:])
    for run, outcome in zip(runs[1:], outcomes[1:], strict=True):
        changes = [line for line in outcome.log if line.startswith("from step")]
        reached = next(
            (
                step
                for step in range(num_steps - 5)
                if statistics.median(outcome.steps_s[step : step + 5]) <= 1.05 * best_s
            ),
            num_steps,
        )
        yield Figure(
            section="live",
            case=f"twin, from {run.name}: steps until within 5 % of the grid's best",
            value=reached,
            unit="steps",
            at_most=30,
            details={
                "best ms": best_s * 1e3,
                "first 10 ms": statistics.median(outcome.steps_s[1:11]) * 1e3,
                "last 10 over the best": statistics.median(outcome.steps_s[-10:]) / best_s,
                "best plan": str(best),
                "changes": "; ".join(changes),
                "log": "; ".join(line for line in outcome.log if line not in changes),
            },
        )


def changing(
    testbed: Testbed, tables: Mapping[float, Table], name: str, gbps: Sequence[float], wanted: float
) -> Iterator[Figure]:
    """The tuner beside the best static plan, what Bayesian optimisation finds at the start, and the oracle."""
    warm, whole = (gbps[0],) * WARM_UP, (*(gbps[0],) * 5, *gbps)
    static, found = best_static(tables, gbps), bayes(tables[gbps[0]])
    known = oracle(tables, gbps)
    runs = [
        Run(name="best static", gbps=whole, plans=(static,) * len(whole)),
        Run(name="BO's", gbps=whole, plans=(found,) * len(whole)),
        Run(name="oracle", gbps=whole, plans=(*(known[0],) * 5, *known)),
        Run(name="twin", gbps=(*warm, *gbps), plans=(DEFAULT,) * (WARM_UP + len(gbps)), tuner="twin"),
    ]
    # What is the same need not be run twice.
    distinct = {(run.plans, run.tuner): run for run in runs}
    results = dict(zip(distinct, run_all(testbed, list(distinct.values())), strict=True))
    outcomes = {run.name: results[run.plans, run.tuner] for run in runs}
    seconds = {each: sum(outcome.steps_s[-len(gbps) :]) for each, outcome in outcomes.items()}
    details = {f"{each} s": value for each, value in seconds.items()}
    for rival in ("BO's", "best static"):
        yield Figure(
            section="live",
            case=f"{name}: the twin's speed over {'the plan BO finds at the start' if rival == BO else rival}",
            value=seconds[rival] / seconds["twin"] - 1,
            unit="",
            at_least=wanted,
            details={
                **details,
                "oracle over it": seconds[rival] / seconds["oracle"] - 1,
                "twin over oracle": seconds["oracle"] / seconds["twin"] - 1,
                "best static plan": str(static),
                "BO's plan": str(found),
                "oracle's plans": "; ".join(map(str, dict.fromkeys(known))),
                "log": "; ".join(outcomes["twin"].log),
            },
        )


BO = "BO's"
ARRIVALS = (HIGH, HIGH / 2, HIGH / 3)
"""What is left to each of one, two and three jobs."""
SECTIONS: dict[str, Callable[[Testbed, Mapping[float, Table]], Iterator[Figure]]] = {
    "converge": converge,
    "bandwidth": partial(
        changing,
        name="bandwidth changes every 20 steps",
        gbps=(HIGH,) * PERIOD + (LOW,) * PERIOD + (HIGH,) * PERIOD,
        wanted=0.10,
    ),
    "jobs": partial(
        changing,
        name="jobs arrive at steps 20 and 40",
        gbps=tuple(gbps for gbps in ARRIVALS for _ in range(PERIOD)),
        wanted=0.088,
    ),
}


def read_tables(path: Path) -> dict[float, Table]:
    return {
        float(gbps): {Candidate(*plan): seconds for plan, seconds in rows}
        for gbps, rows in json.loads(path.read_text()).items()
    }


def write_tables(path: Path, tables: Mapping[float, Table]) -> None:
    rows = {
        gbps: [((plan.policy, plan.partition_bytes, plan.credit_bytes), seconds) for plan, seconds in table.items()]
        for gbps, table in tables.items()
    }
    path.write_text(json.dumps(rows))


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every target is met, 1 otherwise; 77 where hosts cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__)
    parser.add_argument("sections", nargs="+", choices=["grid", *SECTIONS], help="what to measure")
    parser.add_argument("--grid", type=Path, required=True, help="where the grid's times are kept")
    parser.add_argument("--gbps", type=float, nargs="*", help="bandwidths of the grid (default: all that are needed)")
    parser.add_argument("--out", type=Path, help="append the figures to this file, a JSON object a line")
    arguments = parser.parse_args(argv)
    acquire_permission()
    path: Path = arguments.grid
    with Testbed(hosts=NUM_HOSTS, gbps=HIGH) as testbed:
        if "grid" in arguments.sections:
            tables = read_tables(path) if path.exists() else {}
            tables |= measure_grid(testbed, arguments.gbps or sorted({LOW, *ARRIVALS}))
            write_tables(path, tables)
        tables = read_tables(path)
        sections = [SECTIONS[name] for name in arguments.sections if name != "grid"]
        return publish((figure for section in sections for figure in section(testbed, tables)), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
