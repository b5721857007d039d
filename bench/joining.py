"""What a worker that joins costs the others: python -m bench.joining --mbytes 25 --gbps 1 --turns 3

Four workers behind shaped links train with Adam, whose state is twice as large as the weights. The last one is killed
and, when the others have trained without it for a while, started again. A row for each turn: what a step of the others
takes before (`step_s`) and afterwards (`step_after_s`); how many there are from that in which it asks to join to the
first one with it (`joining_steps`), what these take more than steps before (`lost_s`, and as a share `slower`) and than
steps afterwards, which have as many members (`slower_than_after`), and the longest time without one (`longest_s`).
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from torch import nn

import legato.torch as lg
from bench.testbed.crew import KEY, torchrun_environment
from bench.testbed.launch import PORT
from bench.testbed.testbed import Testbed

WORKERS = 4
LAYERS = 8
BEFORE_STEPS = 12
"""Without the one that was killed: what the others' steps take."""
AFTER_STEPS = 6
LIMIT_S = 240.0
LOOK_S = 0.01


def train(environ: dict[str, str], log: Path, mbytes: float, compute_s: float) -> None:
    """On one host, until it is killed. Computing is a pause, as it is for a host whose accelerator works."""
    os.environ.update(environ)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    side = int((mbytes * 1e6 / 4 / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(LAYERS)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    sample = torch.ones(1, side)
    with log.open("w", buffering=1) as file:
        lg.init()
        file.write(f"{time.monotonic():.6f} 0 0\n")
        lg.schedule(model, optimizer)
        while True:
            optimizer.zero_grad()
            loss = model(sample).square().sum()
            time.sleep(compute_s)
            loss.backward()
            optimizer.step()
            file.write(f"{time.monotonic():.6f} {lg.num_steps(model)} {lg.size()}\n")


def lines_of(log: Path) -> list[tuple[float, int, int]]:
    """When, the step, and of how many workers; the first line, of step 0, is from before `schedule`."""
    if not log.exists():
        return []
    whole, _, _ = log.read_text().rpartition("\n")
    fields = [line.split() for line in whole.splitlines()]
    return [(float(at_s), int(step), int(size)) for at_s, step, size in fields]


def wait_until(log: Path, size: int, num_steps: int) -> list[tuple[float, int, int]]:
    """So many steps in a row with so many workers."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        lines = lines_of(log)
        if len(lines) > num_steps and all(line[2] == size for line in lines[-num_steps:]):
            return lines
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not {num_steps} steps of {size} workers within {LIMIT_S:g} s: {lines[-3:]}")
        time.sleep(LOOK_S)


def run(testbed: Testbed, folder: Path, mbytes: float, compute_s: float, turns: int) -> Iterator[dict[str, float]]:
    """One job, whose last worker is killed and comes back in every turn."""
    common = {
        "LEGATO_ELASTIC": "2",
        "LEGATO_MEMBERS_FILE": str(folder / "members"),
        "LEGATO_KEY": KEY,
        "LEGATO_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }

    def start(rank: int, log: Path) -> SpawnProcess:
        environ = {**torchrun_environment(rank, WORKERS, testbed.address(0), PORT), **common}
        return testbed.spawn(rank, train, environ, log, mbytes, compute_s)

    logs = [folder / f"{rank}.log" for rank in range(WORKERS)]
    processes = [start(rank, log) for rank, log in enumerate(logs)]
    for number in range(turns):
        wait_until(logs[0], WORKERS, AFTER_STEPS)
        processes[-1].kill()
        lines = wait_until(logs[0], WORKERS - 1, BEFORE_STEPS)
        before = [b[0] - a[0] for a, b in pairwise(lines[-BEFORE_STEPS:])]
        joined = folder / f"joined.{number}.log"
        processes[-1] = start(WORKERS - 1, joined)
        lines = wait_until(logs[0], WORKERS, AFTER_STEPS)
        yield examine(lines, before, lines_of(joined)[0][0])


def examine(lines: Sequence[tuple[float, int, int]], before: Sequence[float], knocked_s: float) -> dict[str, float]:
    """By what rank 0 has told."""
    step_s = statistics.median(before)
    first = next(number for number, line in enumerate(lines) if line[0] > knocked_s)
    whole = next(number for number, line in enumerate(lines) if line[2] == WORKERS and line[0] > knocked_s)
    gaps = [b[0] - a[0] for a, b in pairwise(lines)]
    joining = gaps[first - 1 : whole + 1]
    step_after_s = statistics.median(gaps[whole + 1 :])
    return {
        "step_s": round(step_s, 3),
        "step_after_s": round(step_after_s, 3),
        "joining_steps": len(joining),
        "lost_s": round(sum(joining) - len(joining) * step_s, 3),
        "slower": round(statistics.mean(joining) / step_s - 1, 3),
        "slower_than_after": round(statistics.mean(joining) / step_after_s - 1, 3),
        "longest_s": round(max(joining), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbytes", type=float, default=25.0, help="of weights")
    parser.add_argument("--gbps", type=float, default=1.0)
    parser.add_argument("--compute-s", type=float, default=0.2, help="of each step")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shape = {"mbytes": options.mbytes, "gbps": options.gbps, "compute_s": options.compute_s}
    with tempfile.TemporaryDirectory() as name, Testbed(hosts=WORKERS, gbps=options.gbps) as testbed:
        for found in run(testbed, Path(name), options.mbytes, options.compute_s, options.turns):
            line = json.dumps({**shape, **found})
            print(line, flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
