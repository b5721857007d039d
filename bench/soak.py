"""Elastic jobs in which something happens all the time: python -m bench.soak --faults 2000 --seed 1

Workers and servers are killed and started again, workers stopped for a while, their connections broken, and frames on
the way changed, dropped, repeated, swapped or cut (bench/meddling.py), at random and seeded. Every average tells whose
gradients are in it (legato.testing.elastic_worker), so a wrong sum, a lost step, or two workers that differ end the run
with an error; so does a fault that nobody has noticed. What it prints: how long training stood still after each fault,
and while a member that was killed came back, how long that took, and what grew in processes that lived through a job
without kills.
"""

import argparse
import json
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

from bench.meddling import CHANGES, Meddled, signal_of
from legato.testing.elastic_job import NEVER, ElasticJob, Process, ServerProcess, elastic_job

HEARTBEAT_S = 5.0
PAUSE_S = 0.5
"""Shorter than a heartbeat: nobody may be given up."""
FAULTS_A_JOB = 200
"""Then another one begins: weights grow with every step, and float32 has to hold what one step adds."""
RETURN = "return"
"""Of whoever was killed: no fault, but what it costs the others is told, too."""
CHECKED_FAULTS = 10
"""After so many, all sums so far are checked."""


@dataclass(frozen=True)
class Fault:
    """What happens to one worker, or to a server."""

    name: str
    act: Callable[[Process | ServerProcess], None]
    weight: int
    loses: bool = False
    """Whether the others have to go on without it."""
    serves: bool = False
    """Whether it happens to a server."""
    ends_epoch: bool = True


def kill(victim: Process | ServerProcess) -> None:
    victim.kill()


def pause(victim: Process | ServerProcess) -> None:
    victim.signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    victim.signal(signal.SIGCONT)


def ask(number: int, victim: Process | ServerProcess) -> None:
    """The victim does it to one of its own links."""
    victim.signal(number)


KILL = Fault("kill -9", kill, 12, loses=True)
KILL_SERVER = Fault("kill -9 of a server", kill, 6, loses=True, serves=True)
OTHERS = (
    Fault("pause", pause, 4, ends_epoch=False),
    Fault("broken link", partial(ask, signal.SIGUSR1), 14),
    *(Fault(name, partial(ask, signal_of(name)), 5) for name in CHANGES),
)


@dataclass
class Soak:
    """What was done to jobs, and how long they stood still."""

    random: Random
    stood_s: dict[str, list[float]] = field(default_factory=dict)
    num_steps: int = 0

    @property
    def num_faults(self) -> int:
        return sum(len(each) for name, each in self.stood_s.items() if not name.startswith(RETURN))

    def strike(self, job: ElasticJob, fault: Fault) -> None:
        """And wait until all are together again."""
        size, servers = len(job.processes), len(job.serving)
        victims: Sequence[Process | ServerProcess] = job.serving if fault.serves else [*job.processes.values()]
        victim = self.random.choice(victims)
        others = [process for process in job.processes.values() if process is not victim]
        watched = others[0]
        left = {"size": size - (fault.loses and not fault.serves), "servers": servers - (fault.loses and fault.serves)}
        before = len(watched.told_s)
        step = max(process.step for process in job.processes.values())
        at_s = time.monotonic()
        print(f"{victim}: {fault.name}", flush=True)
        fault.act(victim)
        for process in others if fault.loses else job.processes.values():
            process.wait_until(step + 1, **left, changed=fault.ends_epoch)
        told_s = [at_s, *watched.told_s[before:]]
        self.stood_s.setdefault(fault.name, []).append(max(b - a for a, b in pairwise(told_s)))
        if fault.loses:
            before, joined_s = len(watched.told_s), time.monotonic()
            if isinstance(victim, ServerProcess):
                job.start_server()
            else:
                job.start(victim.identity, victim.identity)
            for process in job.processes.values():
                process.wait_until(process.step + 1, size=size, servers=servers)
            whole_s = time.monotonic() - joined_s
            stood_s = max(b - a for a, b in pairwise([joined_s, *watched.told_s[before:]]))
            returned = f"{RETURN} of a server" if fault.serves else RETURN
            self.stood_s.setdefault(returned, []).append(stood_s)
            self.stood_s.setdefault(f"{returned}, until it is there", []).append(whole_s)

    def run(
        self, num_workers: int, num_servers: int, faults: Sequence[Fault], num_faults: int, end_s: float
    ) -> dict[str, dict[str, int]]:
        """One job; what its members have grown by."""
        with (
            tempfile.TemporaryDirectory() as directory,
            elastic_job(
                Path(directory),
                num_workers,
                NEVER,
                num_servers=num_servers,
                loop=Meddled,
                LEGATO_HEARTBEAT_S=str(HEARTBEAT_S),
                LEGATO_SHARED_MEMORY="0",
                LEGATO_WIRE="authenticated",
            ) as job,
        ):
            for process in job.processes.values():
                process.wait_until(30)
            first = {str(each): (each, resources(each)) for each in job.living}
            for number in range(num_faults):
                if time.monotonic() >= end_s:
                    break
                [fault] = self.random.choices(faults, weights=[each.weight for each in faults])
                self.strike(job, fault)
                if number % CHECKED_FAULTS == 0:
                    job.check_sums()
                    print(f"{self.num_faults} faults, step {job.processes[0].step}", flush=True)
            job.check_sums()
            self.num_steps += max(process.step for process in job.processes.values())
            left = job.living
            return {
                name: {key: value - before[key] for key, value in resources(each).items()}
                for name, (each, before) in first.items()
                if each in left
            }


def resources(process: Process | ServerProcess) -> dict[str, int]:
    root = Path(f"/proc/{process.pid}")
    status = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines())
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(list((root / "fd").iterdir())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="and no longer than that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    soak = Soak(Random(options.seed))
    begin_s = time.monotonic()
    end_s = begin_s + options.seconds
    num_quiet = min(FAULTS_A_JOB, options.faults // 2)
    # Without kills: somebody has to live for long enough to grow.
    growth: dict[str, dict[str, int]] = {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # whoever ends it early has the row of what was done
        growth = soak.run(options.workers, options.servers, OTHERS, num_quiet, end_s)
        kills = (KILL, KILL_SERVER) if options.servers else (KILL,)
        while soak.num_faults < options.faults and time.monotonic() < end_s:
            num_faults = min(FAULTS_A_JOB, options.faults - soak.num_faults)
            soak.run(options.workers, options.servers, (*kills, *OTHERS), num_faults, end_s)
    row = {
        "seconds": round(time.monotonic() - begin_s, 1),
        "seed": options.seed,
        "workers": options.workers,
        "servers": options.servers,
        "steps": soak.num_steps,
        "wrong_sums": 0,
        "num_faults": soak.num_faults,
        "faults": {name: len(each) for name, each in soak.stood_s.items()},
        "median_s": {name: round(statistics.median(each), 3) for name, each in soak.stood_s.items()},
        "largest_s": {name: round(max(each), 3) for name, each in soak.stood_s.items()},
        "growth": growth,
    }
    line = json.dumps(row)
    print(line)
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
