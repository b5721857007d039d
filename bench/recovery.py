"""What a killed worker costs, beside torchrun and torchft: python -m bench.recovery --kills 5 --turns 2 --seed 1

The same training of digits (bench/recovery_script.py), four workers, one of which is killed (kill -9) every 20 s, at a
random step: under `legato run --min 2 --max 4`, where the others go on and it comes back; under torchrun with DDP over
Gloo, which ends all ranks and starts them again from the last step's checkpoint; and, where it is installed, with
torchft (bench/recovery_torchft.py), which gives up the step and goes on without it. In turns, a row for each.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random

import torch
from sklearn.datasets import load_digits

WORKERS = 4
EVERY_S = 20.0
LIMIT_S = 120.0
"""For ranks to begin, or to go on after a kill."""
LOOK_S = 0.01
SCRIPT = Path(__file__).with_name("recovery_script.py")
SYSTEMS: dict[str, Callable[[int, int], list[str]]] = {
    "legato": lambda workers, kills: [
        *("-m", "legato.cli", "run", "--min", str(workers // 2), "--max", str(workers), "--restarts", str(kills)),
    ],
    "torchrun": lambda workers, kills: [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)),
        *("--max-restarts", str(kills), "--monitor-interval", "0.1"),
    ],
}
if find_spec("torchft") is not None:
    SYSTEMS["torchft"] = lambda workers, kills: [
        *("-m", "bench.recovery_torchft", "--min", str(workers // 2), "--max", str(workers), "--restarts", str(kills)),
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """A rank has completed a step."""

    at_s: float
    step: int
    size: int
    turn: int
    """How often torchrun has started all ranks again."""
    digest: int
    pid: int


@dataclass(slots=True)
class Told:
    """What all ranks have told so far."""

    folder: Path
    lines: list[Line] = field(default_factory=list)
    _read_bytes: dict[Path, int] = field(default_factory=dict)

    def read(self) -> list[Line]:
        """What has come since."""
        new = []
        for path in self.folder.glob("*.log"):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole) + len(newline)
            for line in whole.decode().splitlines():
                at_s, step, size, turn, digest = line.split()
                new.append(Line(float(at_s), int(step), int(size), int(turn), int(digest), int(path.stem)))
        self.lines += new
        return new

    def wait_for(self, arrived: Callable[[list[Line]], bool]) -> None:
        """Until what has come since the call is enough."""
        since, deadline_s = len(self.lines), time.monotonic() + LIMIT_S
        while not arrived(self.lines[since:]):
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"the ranks have not come so far within {LIMIT_S:g} s; their last: {self.lines[-1:]}"
                )
            time.sleep(LOOK_S)
            self.read()


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill, and what followed."""

    at_s: float
    recovery_s: float
    """Until all that train have completed a step that nobody had completed before."""
    whole_s: float
    """Until all have."""
    lost: int
    """Steps that were taken again."""


def is_whole(lines: list[Line], workers: int) -> bool:
    """Whether all workers have completed some step together."""
    by_step: dict[int, set[int]] = {}
    for line in lines:
        by_step.setdefault(line.step, set()).add(line.pid)
    return any(len(pids) == workers for pids in by_step.values())


def examine(lines: list[Line], at_s: float, workers: int) -> Kill:
    """By what all ranks have told; they are whole again."""
    before = [line for line in lines if line.at_s <= at_s]
    after = [line for line in lines if line.at_s > at_s]
    newest = max(line.step for line in before)
    known = {line.pid for line in before}
    fresh = [line.step for line in after if line.pid not in known]
    by_step: dict[int, list[Line]] = {}
    for line in after:
        if line.step > newest:
            by_step.setdefault(line.step, []).append(line)
    whole = min(step for step, each in by_step.items() if len({line.pid for line in each}) == workers)
    return Kill(
        at_s,
        max(line.at_s for line in by_step[newest + 1]) - at_s,
        max(line.at_s for line in by_step[whole]) - at_s,
        max(newest + 1 - min(fresh), 0),
    )


def check_weights(lines: list[Line]) -> None:
    """All ranks have the same after the same step."""
    digests: dict[tuple[int, int], int] = {}
    for line in lines:
        if line.digest != digests.setdefault((line.turn, line.step), line.digest):
            raise AssertionError(f"weights differ after step {line.step}")


@contextmanager
def started(system: str, folder: Path, workers: int, kills: int) -> Iterator[None]:
    command = [sys.executable, *SYSTEMS[system](workers, kills), str(SCRIPT), system, str(folder)]
    # torch's agent keeps one store for all its restarts unless told otherwise. In it, ranks that are started again find
    # the addresses of those that have ended: Gloo tries to reach them for 30 s, and the job fails once more.
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "output").open("wb") as output:
        launcher = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
    try:
        yield
    except BaseException:
        print((folder / "output").read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(LIMIT_S)


def run(
    system: str, kills: int, random: Random, *, workers: int = WORKERS, every_s: float = EVERY_S
) -> tuple[list[Kill], list[Line]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
        torch.save((images.float() / 16, labels), folder / "digits.pt")
        told = Told(folder)
        found = []
        with started(system, folder, workers, kills):
            told.wait_for(lambda new: is_whole(new, workers))
            for _ in range(kills):
                next_s = time.monotonic() + every_s
                told.wait_for(lambda _, next_s=next_s: time.monotonic() > next_s)  # type: ignore[misc]
                step = told.lines[-1].step + random.randint(1, 50)
                told.wait_for(lambda new, step=step: any(line.step >= step for line in new))  # type: ignore[misc]
                recent = told.lines[-workers * 5 :]
                victim = random.choice(sorted({line.pid for line in recent}))
                at_s = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                told.read()
                newest = max(line.step for line in told.lines)
                told.wait_for(
                    lambda new, newest=newest, at_s=at_s: is_whole(  # type: ignore[misc]
                        [line for line in new if line.step > newest and line.at_s > at_s], workers
                    )
                )
                found.append(examine(told.lines, at_s, workers))
            told.wait_for(lambda new: is_whole(new, workers))
    check_weights(told.lines)
    return found, told.lines


def row_of(system: str, seed: int, turn: int, kills: list[Kill], lines: list[Line]) -> dict[str, object]:
    begin_s, end_s = kills[0].at_s - EVERY_S, max(line.at_s for line in lines)
    steps = {line.step for line in lines if line.at_s >= begin_s}
    return {
        "system": system,
        "seed": seed,
        "turn": turn,
        "kills": len(kills),
        "recovery_s": [round(each.recovery_s, 3) for each in kills],
        "whole_s": [round(each.whole_s, 3) for each in kills],
        "lost": [each.lost for each in kills],
        "median_recovery_s": round(statistics.median(each.recovery_s for each in kills), 3),
        "steps_per_s": round(len(steps) / (end_s - begin_s), 1),
        "weights_equal": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="in each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for turn in range(options.turns):
        for system in options.systems:
            kills, lines = run(system, options.kills, Random(options.seed * 100 + turn))
            line = json.dumps(row_of(system, options.seed, turn, kills, lines))
            print(line, flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
