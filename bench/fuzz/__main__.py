"""Fuzz every parser, each in a process of its own: `python -m bench.fuzz --seconds 60 [--seed 1] [--target plans ...]`

A finding prints the target, the seed, the number of the input and its bytes; `--only NUMBER` runs it again. `make fuzz`
does it with the sanitized build of the engine.
"""

import argparse
import mmap
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench.fuzz.targets import Target, refuses, targets

CASE_S = 20.0
"""An input that takes longer is a finding."""
_NUMBER = struct.Struct("<q")


def main(arguments: list[str] | None = None) -> int:
    every = targets()
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--target", nargs="+", choices=sorted(every), default=list(every))
    parser.add_argument("--only", type=int, default=None, help="the number of one input")
    parser.add_argument("--note", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    if given.only is not None:
        return _run([given.only], given.target[0], every[given.target[0]], seed, sys.maxsize, None)
    if given.note is not None:
        return _run(count(), given.target[0], every[given.target[0]], seed, given.seconds, given.note)
    return max(_in_a_process(name, every[name], seed, given.seconds) for name in given.target)


def data_of(target: Target, seed: int, number: int) -> bytes:
    """The input with this number."""
    return target.make(random.Random(f"{seed}/{number}"))


def _in_a_process(name: str, target: Target, seed: int, seconds: float) -> int:
    """What ends the process is a finding as well: its note says which input it was at."""
    with tempfile.NamedTemporaryFile() as note:
        note.write(_NUMBER.pack(-1))
        note.flush()
        flags = ["-S"] if sys.flags.no_site else []
        words = ["--target", name, "--seed", str(seed), "--seconds", str(seconds), "--note", note.name]
        done = subprocess.run([sys.executable, *flags, "-X", "faulthandler", "-m", "bench.fuzz", *words], check=False)
        if done.returncode not in (0, 1):
            note.seek(0)
            (number,) = _NUMBER.unpack(note.read(_NUMBER.size))
            _say(name, seed, number, data_of(target, seed, number), f"the process ended with {done.returncode}")
    return int(done.returncode != 0)


def _run(
    numbers: "Iterator[int] | list[int] | count[int]",
    name: str,
    target: Target,
    seed: int,
    seconds: float,
    note: Path | None,
) -> int:
    """1 at the first finding, 0 when the time is over without one."""
    until_s = time.monotonic() + seconds
    num_inputs = num_refused = 0
    with _noted(note) as write:
        for number in numbers:
            if time.monotonic() > until_s:
                break
            data = data_of(target, seed, number)
            write(number)
            signal.setitimer(signal.ITIMER_REAL, CASE_S)
            try:
                num_refused += refuses(target, data)
            except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                _say(name, seed, number, data, traceback.format_exc())
                return 1
            num_inputs += 1
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    print(f"{name}: {num_inputs} inputs, {num_refused} refused, no finding (seed {seed})", flush=True)
    return 0


@contextmanager
def _noted(path: Path | None):  # type: ignore[no-untyped-def]
    """Writes numbers where they outlive the process."""

    def alarm(*_: object) -> None:
        raise TimeoutError(f"an input has taken {CASE_S:g} s")

    signal.signal(signal.SIGALRM, alarm)
    if path is None:
        yield lambda _: None
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _NUMBER.size) as memory:
        yield lambda number: _NUMBER.pack_into(memory, 0, number)


def _say(name: str, seed: int, number: int, data: bytes, why: str) -> None:
    print(
        f"FINDING in {name}: seed {seed}, input {number}, {len(data)} bytes\n{data[:2000]!r}\n{why}\n"
        f"again: python -m bench.fuzz --target {name} --seed {seed} --only {number}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
