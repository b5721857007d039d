"""A job of MXNet's on loopback: a scheduler, servers and workers, each a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from legato.testing.ports import free_port


class Cluster:
    """Its processes are ended with it, whatever state they are in."""

    def __init__(self, *, workers: int, servers: int, directory: Path) -> None:
        self._directory = directory
        self._environment = {
            **os.environ,
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NODE_HOST": "127.0.0.1",
            # Processes share the processors of this machine.
            "OMP_NUM_THREADS": "1",
        }
        self._others = [
            self._start("scheduler", ["-c", "import mxnet"]),
            *(self._start("server", ["-c", "import mxnet"]) for _ in range(servers)),
        ]
        self.workers: list[subprocess.Popen[str]] = []

    def start_workers(self, cases: Sequence[Sequence[str]]) -> None:
        """One for each command line of tests.mxnet.cases."""
        for number, case in enumerate(cases):
            # The more ranks end up in the order of starting the better for reading logs; nothing depends on it.
            self.workers.append(self._start("worker", ["-m", "tests.mxnet.cases", str(self._report(number)), *case]))

    def _start(self, role: str, command: Sequence[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *command],
            env={**self._environment, "DMLC_ROLE": role},
            stdout=subprocess.PIPE if role == "worker" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if role == "worker" else subprocess.DEVNULL,
            text=True,
        )

    def _report(self, number: int) -> Path:
        return self._directory / f"worker-{number}.json"

    def outputs(self, timeout_s: float) -> list[str]:
        """What the workers printed, when all have ended."""
        until_s = time.monotonic() + timeout_s
        return [worker.communicate(timeout=max(until_s - time.monotonic(), 0.1))[0] for worker in self.workers]

    def reports(self, timeout_s: float = 90.0) -> list[Any]:
        """What the workers have to say, in the order of their ranks."""
        outputs = self.outputs(timeout_s)
        for worker, output in zip(self.workers, outputs, strict=True):
            assert worker.returncode == 0, output
        said = [json.loads(self._report(number).read_text()) for number in range(len(self.workers))]
        return [each["report"] for each in sorted(said, key=lambda each: int(each["rank"]))]

    def close(self) -> None:
        for process in (*self.workers, *self._others):
            if process.poll() is None:
                process.kill()
        for process in (*self.workers, *self._others):
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10.0)


@contextmanager
def cluster(*, workers: int = 2, servers: int = 2) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as directory:
        made = Cluster(workers=workers, servers=servers, directory=Path(directory))
        try:
            yield made
        finally:
            made.close()


def run(case: str, *arguments: str, workers: int = 2, servers: int = 2, timeout_s: float = 90.0) -> list[Any]:
    """A case on every worker of a job; what each reports, by rank."""
    with cluster(workers=workers, servers=servers) as job:
        job.start_workers([(case, *arguments)] * workers)
        return job.reports(timeout_s)
