"""How far from the best plan each tuner ends, and after how many steps: `python -m bench.tuning FILE.jsonl`.

Random workloads on random networks that no network was trained on, in the simulator, measured with noise: every step by
2 %, every layer time by 3 %, every part by 3 %. Regret is how much longer a step takes under the plan a tuner settles
on than under the best of the whole grid. A scenario is a line of the file, so a run that was stopped goes on, and
`--seconds` stops one.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from math import inf
from multiprocessing import get_context
from operator import add
from pathlib import Path
from statistics import mean, median, quantiles

import torch
from rich.console import Console
from rich.table import Table

from legato.core import Workload
from legato.sim.one_step import Span, coarsened, one_step
from legato.tuning.autobyte.scenario import Scenario, scenario
from legato.tuning.autobyte.tuner import AutoByte
from legato.tuning.candidate import BASELINE, TRANSPORTS, Candidate, Space
from legato.tuning.search.bayes import BYTESCHEDULER, Bayes
from legato.tuning.search.random_search import RandomSearch
from legato.tuning.statistics import WINDOW_STEPS, Statistics
from legato.tuning.tuner import Tuner
from legato.tuning.twin.costs import Costs
from legato.tuning.twin.preemption import slowed
from legato.tuning.twin.search import simulated_s
from legato.tuning.twin.transports import cluster_over
from legato.tuning.twin.twin import Twin

SPACES = {False: Space(), True: Space(transports=TRANSPORTS)}
"""Whether the transport is to be chosen, too."""
MAX_PARTS = 400
STEP_NOISE, LAYER_NOISE, PART_NOISE = 0.02, 0.03, 0.03
WINDOWS = 3
"""Windows that tuners with a model get: 30 steps."""
BYTESCHEDULER_STEPS = 110
"""Steps that ByteScheduler takes for one point."""


class Bench:
    """One scenario: the truth, and what a job would measure of it."""

    def __init__(self, drawn: Scenario, rng: random.Random) -> None:
        self.workload, self.cluster = drawn
        self._rng = rng
        self._true: dict[Candidate, float] = {}

    def seconds(self, candidate: Candidate) -> float:
        if candidate not in self._true:
            self._true[candidate] = simulated_s(self.workload, self.cluster, candidate, MAX_PARTS)
        return self._true[candidate]

    def measured(self, candidate: Candidate, *, parts: bool) -> Statistics:
        """A window under a candidate; what its parts cost only for those who look at it, for it takes longest."""
        costs = self._costs(candidate) if parts else Costs()
        links = slowed(cluster_over(self.cluster, candidate.transport), self.workload, candidate)
        steps = [self.seconds(candidate) * self._noise(STEP_NOISE) for _ in range(WINDOW_STEPS)]
        layers = tuple(
            replace(
                layer,
                forward_s=layer.forward_s * self._noise(LAYER_NOISE),
                backward_s=layer.backward_s * self._noise(LAYER_NOISE),
            )
            for layer in self.workload.layers
        )
        return Statistics(
            candidate=candidate,
            steps=WINDOW_STEPS,
            iteration_s=median(steps),
            workers=self.cluster.workers,
            workload=Workload(self.workload.name, layers),
            rates_bytes_per_s=tuple(self._noise(LAYER_NOISE) / links.seconds_per_byte for _ in range(WINDOW_STEPS)),
            costs=costs,
        )

    def _costs(self, candidate: Candidate) -> Costs:
        cluster, plan = cluster_over(self.cluster, candidate.transport), candidate.plan(self.workload.tensors)
        spans = one_step(self.workload, *coarsened(self.workload, cluster, plan, 4 * MAX_PARTS)).spans
        return reduce(add, (Costs.of(map(self._shaken, spans)) for _ in range(WINDOW_STEPS)))

    def _shaken(self, span: Span) -> Span:
        return span._replace(finished_s=span.started_s + (span.finished_s - span.started_s) * self._noise(PART_NOISE))

    def _noise(self, sigma: float) -> float:
        return self._rng.lognormvariate(0.0, sigma)


def run(tuner: Tuner, bench: Bench, windows: int) -> int:
    """Let a tuner have its windows; the answer is how many it used."""
    for window in range(windows):
        if tuner.settled:
            return window
        tuner.tell(bench.measured(tuner.ask(), parts=isinstance(tuner, AutoByte | Twin)))
    return windows


def judge(seed: int, *, transports: bool) -> dict[str, object]:
    """One scenario: the regret and the steps of every tuner."""
    space = SPACES[transports]
    bench = Bench(scenario(random.Random(f"judged/{seed}")), random.Random(f"noise/{seed}"))
    best_s = min(bench.seconds(candidate) for candidate in (*space, BASELINE))
    shape = replace(bench.cluster, gbps=1.0, latency_s=0.0, overhead_s=0.0)
    tuners: dict[str, tuple[Callable[[], Tuner], int, int]] = {
        "random": (lambda: RandomSearch(space, budget=15, seed=seed), 15, WINDOW_STEPS),
        "random, 3 windows": (lambda: RandomSearch(space, budget=WINDOWS, seed=seed), WINDOWS, WINDOW_STEPS),
        "BO (ByteScheduler)": (lambda: Bayes(space, seed=seed), BYTESCHEDULER.points, BYTESCHEDULER_STEPS),
        "AutoByte": (lambda: AutoByte(space, shape), WINDOWS, WINDOW_STEPS),
        "twin": (lambda: Twin(space, shape), WINDOWS, WINDOW_STEPS),
    }
    row: dict[str, object] = {
        "seed": seed,
        "wfbp": [bench.seconds(BASELINE) / best_s - 1, 0],
        "default": [bench.seconds(space.start) / best_s - 1, 0],
    }
    for name, (make, windows, steps) in tuners.items():
        tuner = make()
        used = run(tuner, bench, windows)
        row[name] = [bench.seconds(tuner.ask()) / best_s - 1, used * steps]
    return row


def table(rows: list[dict[str, list[float]]]) -> Table:
    result = Table(title=f"regret over {len(rows)} random workloads × networks")
    result.add_column("tuner", no_wrap=True)
    for column in ("median", "95th percentile", "worst", "steps"):
        result.add_column(column, justify="right")
    for name in (key for key in rows[0] if key != "seed"):
        regrets = [row[name][0] for row in rows]
        p95 = quantiles(regrets, n=20)[-1] if len(regrets) > 1 else regrets[0]
        steps = mean(row[name][1] for row in rows)
        result.add_row(name, f"{median(regrets):.2%}", f"{p95:.2%}", f"{max(regrets):.1%}", f"{steps:.0f}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="results, a line per scenario")
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--transports", action="store_true", help="the transport is to be chosen, too")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=inf, help="stop after so long; the next run goes on")
    arguments = parser.parse_args()
    until_s = time.monotonic() + arguments.seconds
    file: Path = arguments.file
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    missing = sorted(set(range(arguments.scenarios)) - {row["seed"] for row in rows})
    # Processes share the cores already: threads within each would only be in their way.
    pool = ProcessPoolExecutor(
        arguments.processes, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )
    with file.open("a") as out, pool:
        for count, row in enumerate(pool.map(partial(judge, transports=arguments.transports), missing), start=1):
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            if count % 20 == 0:
                print(f"{count} of {len(missing)}", file=sys.stderr)
            if time.monotonic() > until_s:
                pool.shutdown(cancel_futures=True)
                break
    Console().print(table(rows))


if __name__ == "__main__":
    main()
