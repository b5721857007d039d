"""An elastic job in which something happens every few seconds: python -m bench.soak --seconds 600 --seed 1

Workers are killed and started again, stopped for a while, and their connections broken, at random and seeded. Every
average tells whose gradients are in it (legato.testing.elastic_worker), so a wrong sum, a lost step, or two workers
that differ end the run with an error. What it prints: how long training stood still after each fault, and what grew.
"""

import argparse
import json
import logging
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from legato.testing.elastic_job import NEVER, ElasticJob, Process, elastic_job

_log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0


@dataclass(frozen=True)
class Fault:
    """What happens to one worker."""

    name: str
    act: Callable[["Soak", Process], None]
    loses: bool
    """Whether the others have to go on without it."""


class Soak:
    """One job, and what is done to it."""

    def __init__(self, job: ElasticJob, random: Random) -> None:
        self.job = job
        self.random = random
        self.stood_s: dict[str, list[float]] = {}

    def kill(self, victim: Process) -> None:
        victim.kill()

    def break_link(self, victim: Process) -> None:
        victim.signal(signal.SIGUSR1)

    def pause(self, victim: Process) -> None:
        """Shorter than a heartbeat: nobody may be given up."""
        victim.signal(signal.SIGSTOP)
        time.sleep(HEARTBEAT_S / 4)
        victim.signal(signal.SIGCONT)

    def strike(self, fault: Fault) -> None:
        """And wait until all are together again."""
        job = self.job
        size = len(job.processes)
        victim = self.random.choice(list(job.processes.values()))
        others = [process for process in job.processes.values() if process is not victim]
        watched = others[0]
        before = len(watched.told_s)
        step = max(process.step for process in others)
        at_s = time.monotonic()
        fault.act(self, victim)
        if fault.loses:
            for process in others:
                process.wait_until(step + 1, size=size - 1)
        else:
            for process in others:
                process.wait_until(step + 15, size=size)
        told_s = [at_s, *watched.told_s[before:]]
        self.stood_s.setdefault(fault.name, []).append(max(b - a for a, b in pairwise(told_s)))
        if fault.loses:
            back = job.start(victim.identity, victim.identity)
            joined_s = time.monotonic()
            back.wait_until(1, size=size)
            for process in others:
                process.wait_until(process.step + 1, size=size)
            self.stood_s.setdefault("return", []).append(time.monotonic() - joined_s)


FAULTS = (
    Fault("kill -9", Soak.kill, loses=True),
    Fault("broken link", Soak.break_link, loses=False),
    Fault("pause", Soak.pause, loses=False),
)


def resources(process: Process) -> dict[str, int]:
    root = Path(f"/proc/{process.pid}")
    status = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines())
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(list((root / "fd").iterdir())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    random = Random(options.seed)
    with (
        tempfile.TemporaryDirectory() as directory,
        elastic_job(
            Path(directory),
            options.workers,
            NEVER,
            LEGATO_HEARTBEAT_S=str(HEARTBEAT_S),
            LEGATO_SHARED_MEMORY="0",
        ) as job,
    ):
        soak = Soak(job, random)
        for process in job.processes.values():
            process.wait_until(30)
        end_s = time.monotonic() + options.seconds
        first = {identity: resources(process) for identity, process in job.processes.items()}
        firsts = dict(job.processes)
        while time.monotonic() < end_s:
            fault = random.choices(FAULTS, weights=(2, 1, 1))[0]
            soak.strike(fault)
            job.check_sums()
            print(f"{fault.name}: step {max(process.step for process in job.processes.values())}", flush=True)
        last = {
            identity: resources(process) for identity, process in job.processes.items() if firsts[identity] is process
        }
        steps = max(process.step for process in job.processes.values())
        row = {
            "seconds": options.seconds,
            "seed": options.seed,
            "workers": options.workers,
            "steps": steps,
            "wrong_sums": 0,
            "faults": {name: len(each) for name, each in soak.stood_s.items()},
            "median_s": {name: round(statistics.median(each), 3) for name, each in soak.stood_s.items()},
            "largest_s": {name: round(max(each), 3) for name, each in soak.stood_s.items()},
            "growth": {
                identity: {key: last[identity][key] - first[identity][key] for key in last[identity]}
                for identity in last
            },
        }
    line = json.dumps(row)
    print(line)
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
