"""Elastic jobs of real processes: started, killed, stopped, brought back, and what they say checked."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from legato.testing.ports import free_port

TIMEOUT_S = 60.0


class Process:
    """One worker, and what it has said."""

    def __init__(self, identity: int, num_steps: int, env: dict[str, str]) -> None:
        self.identity = identity
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "legato.testing.elastic_worker", str(identity), str(num_steps)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self.told_s: list[float] = []
        """When, by this process's clock."""
        self.log: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._changed:
                self.said.append(json.loads(line))
                self.told_s.append(time.monotonic())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _read_log(self) -> None:
        assert self.popen.stderr is not None
        self.log.extend(self.popen.stderr)

    def wait_until(self, step: int, size: int | None = None) -> dict[str, Any]:
        """It has come so far, with so many workers."""

        def found() -> dict[str, Any] | None:
            told = (each for each in self.said if each.get("step", -1) >= step and size in (None, each["size"]))
            return next(told, None)

        with self._changed:
            is_there = self._changed.wait_for(lambda: found() or self.popen.poll() is not None, TIMEOUT_S)
            line = found()
            assert is_there
            assert line is not None, (step, size, self.said[-3:], "".join(self.log[-20:]))
            return line

    @property
    def step(self) -> int:
        return max((each.get("step", 0) for each in self.said), default=0)

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(TIMEOUT_S)

    def finish(self) -> int:
        """Its exit status, when it has ended."""
        status = self.popen.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        return status


class ElasticJob:
    """Starts workers; identities are those of the gradients, whatever ranks they get."""

    def __init__(self, directory: Path, num_workers: int, num_steps: int, minimum: int, **settings: str) -> None:
        self._num_workers = num_workers
        self._num_steps = num_steps
        self._env = {
            **os.environ,
            "WORLD_SIZE": str(num_workers),
            "LOCAL_WORLD_SIZE": str(num_workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "LEGATO_ELASTIC": str(minimum),
            "LEGATO_MEMBERS_FILE": str(directory / "members"),
            "LEGATO_KEY": "a key that only this test has, long enough",
            "LEGATO_HEARTBEAT_S": "2",
            "LEGATO_TIMEOUT_S": "30",
            "OMP_NUM_THREADS": "1",
            **settings,
        }
        self.processes: dict[int, Process] = {}
        self.ended: list[Process] = []
        for rank in range(num_workers):
            self.start(rank, rank)

    def start(self, identity: int, rank: int) -> Process:
        if identity in self.processes:
            self.ended.append(self.processes[identity])
        env = {**self._env, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = self.processes[identity] = Process(identity, self._num_steps, env)
        return process

    def stop(self) -> None:
        """Have everybody end after the next step."""
        for process in self.processes.values():
            assert process.popen.stdin is not None
            with suppress(OSError):
                process.popen.stdin.write("\n")
                process.popen.stdin.flush()

    def finish(self, *identities: int) -> None:
        for identity in identities:
            process = self.processes[identity]
            assert process.finish() == 0, (identity, process.said[-3:], "".join(process.log[-30:]))

    def check_sums(self) -> None:
        """No two workers differ after the same step, every layer changed as a whole, and each step's averages are of
        whole gradients, each at most once."""
        values: dict[int, list[list[float]]] = {}
        for process in [*self.processes.values(), *self.ended]:
            for line in process.said:
                if "step" not in line:
                    continue
                for low, high in line["values"]:
                    assert low == high, line
                known = values.setdefault(line["step"], line["values"])
                assert line["values"] == known, (process.identity, line, known)
        possible = {
            mask / mask.bit_count()
            for mask in range(1, 2 ** (max(process.identity for process in self.processes.values()) + 1))
        }
        largest = max(possible)
        steps = sorted(values)
        for before, after in pairwise(steps):
            for (old, _), (new, _) in zip(values[before], values[after], strict=True):
                change = old - new
                assert 0 < change <= largest * (after - before) + 1e-3, (before, after, change)
                if after == before + 1:
                    assert min(abs(change - each) for each in possible) < 1e-3, (before, after, change)

    def close(self) -> None:
        for process in [*self.processes.values(), *self.ended]:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGCONT)
                process.kill()
            for pipe in (process.popen.stdin, process.popen.stdout, process.popen.stderr):
                assert pipe is not None
                pipe.close()


@contextmanager
def elastic_job(
    directory: Path, num_workers: int, num_steps: int, *, minimum: int = 1, **settings: str
) -> Iterator[ElasticJob]:
    job = ElasticJob(directory, num_workers, num_steps, minimum, **settings)
    try:
        yield job
    finally:
        job.close()
