"""How far from the best plan each tuner ends, and after how many steps: `python -m bench.tuning FILE.jsonl`.

Random workloads on random networks that AutoByte's network was not trained on, in the simulator. Tuners start from the
plan that training starts from, search the space that training searches, and are told what training measures: step
times, layer times and rates, with noise. Regret is how much longer a step takes under the plan a tuner ends with than
under the best of the whole space. A scenario is a line of the file, so a run that was stopped goes on, and `--seconds`
stops one.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, quantiles

import torch
from rich.console import Console
from rich.table import Table

from legato.core import Workload
from legato.exchange.planner import NativePlanner
from legato.sim.cluster import Architecture
from legato.torch.tuning.live import SPACE
from legato.tuning.autobyte.dataset import Scenario, scenario
from legato.tuning.candidate import BASELINE, C10D, NATIVE, TRANSPORTS, Candidate, Space
from legato.tuning.search.bayes import POINTS, Bayes
from legato.tuning.search.trying import RandomSearch
from legato.tuning.statistics import WINDOW_STEPS, Statistics
from legato.tuning.tuner import Tuner
from legato.tuning.tuners import tuner_named
from legato.tuning.twin.search import simulated_window
from legato.tuning.twin.transports import BASELINES, PARTS_IN_FLIGHT

MAX_PARTS = 400
STEP_NOISE, LAYER_NOISE, RATE_NOISE = 0.02, 0.03, 0.03
WINDOWS = 3
"""Windows that tuners with a model get: 30 steps."""
BYTESCHEDULER_STEPS = 110
"""Steps that ByteScheduler takes for one point."""
ENGINE_PARTITION_BYTES = BASELINES[NATIVE].partition_bytes
OVERHEAD_SHARE = 1 / 8
"""Of what a scenario has: 0.6 to 25 µs a part. The engine has about 5 (docs/decisions/012), which tuners assume."""


class Bench:
    """One scenario: the truth, and what a job would measure of it."""

    def __init__(self, drawn: Scenario, rng: random.Random) -> None:
        self.workload, self.cluster = drawn
        self._rng = rng
        self._true: dict[Candidate, Statistics] = {}

    def seconds(self, candidate: Candidate) -> float:
        return self._window(candidate).iteration_s

    def measured(self, candidate: Candidate) -> Statistics:
        """A window under a candidate."""
        true = self._window(candidate)
        layers = tuple(
            replace(
                layer,
                forward_s=layer.forward_s * self._noise(LAYER_NOISE),
                backward_s=layer.backward_s * self._noise(LAYER_NOISE),
            )
            for layer in self.workload.layers
        )
        return replace(
            true,
            iteration_s=median(true.iteration_s * self._noise(STEP_NOISE) for _ in range(WINDOW_STEPS)),
            workload=Workload(self.workload.name, layers),
            rates_bytes_per_s=tuple(rate * self._noise(RATE_NOISE) for rate in true.rates_bytes_per_s),
        )

    def _window(self, candidate: Candidate) -> Statistics:
        if candidate not in self._true:
            self._true[candidate] = simulated_window(self.workload, self.cluster, candidate, MAX_PARTS)
        return self._true[candidate]

    def _noise(self, sigma: float) -> float:
        return self._rng.lognormvariate(0.0, sigma)


def run(tuner: Tuner, bench: Bench, windows: int) -> int:
    """Let a tuner have its windows; the answer is how many it used."""
    for window in range(windows):
        if tuner.settled:
            return window
        tuner.tell(bench.measured(tuner.ask()))
    return windows


def live(drawn: Scenario) -> tuple[Scenario, Space, Candidate, Candidate]:
    """The scenario over the native engine, what training may choose there, where it starts, and its baseline."""
    workload, cluster = drawn
    cluster = replace(
        cluster, overhead_s=cluster.overhead_s * OVERHEAD_SHARE, architecture=Architecture.PS, overtaking=True
    )
    plan = NativePlanner(bytes_per_s=cluster.bytes_per_second()).write(workload.tensors, ENGINE_PARTITION_BYTES)
    partition_bytes = plan.largest_partition_bytes
    assert partition_bytes is not None
    start = Candidate("bytescheduler", partition_bytes, PARTS_IN_FLIGHT * partition_bytes)
    return Scenario(workload, cluster), SPACE, start, replace(BASELINE, partition_bytes=partition_bytes)


def with_transports(drawn: Scenario) -> tuple[Scenario, Space, Candidate, Candidate]:
    """The scenario as it is, and all plans over either transport."""
    space = Space(transports=TRANSPORTS)
    return drawn, space, space.start, BASELINES[C10D]


def judge(seed: int, *, transports: bool) -> dict[str, object]:
    """One scenario: the regret and the steps of every tuner."""
    drawn, space, start, baseline = (with_transports if transports else live)(scenario(random.Random(f"judged/{seed}")))
    bench = Bench(drawn, random.Random(f"noise/{seed}"))
    best_s = min(bench.seconds(candidate) for candidate in (*space, start, baseline))
    shape = replace(bench.cluster, gbps=1.0, latency_s=0.0, overhead_s=0.0)
    tuners: dict[str, tuple[Callable[[], Tuner], int, int]] = {
        "random, 3 windows": (lambda: RandomSearch(space, budget=WINDOWS, seed=seed), WINDOWS, WINDOW_STEPS),
        "BO (ByteScheduler)": (lambda: Bayes(space, seed=seed), POINTS, BYTESCHEDULER_STEPS),
        "AutoByte": (lambda: tuner_named("autobyte", space, shape, start), WINDOWS, WINDOW_STEPS),
        "twin": (lambda: tuner_named("twin", space, shape, start), WINDOWS, WINDOW_STEPS),
    }
    row: dict[str, object] = {
        "seed": seed,
        "wfbp": [bench.seconds(baseline) / best_s - 1, 0],
        "start": [bench.seconds(start) / best_s - 1, 0],
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
