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

import pytest

from legato.testing.ports import free_port

Reports = dict[str, list[Any]]
"""By case, then by rank."""


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

    def start_workers(self, cases: Sequence[str]) -> None:
        """Each runs these cases one after the other; a case is written as on a command line: `name argument …`."""
        for number in range(int(self._environment["DMLC_NUM_WORKER"])):
            self.start_worker("-m", "tests.mxnet.cases", str(self._report(number)), *cases)

    def start_worker(self, *command: str) -> None:
        self.workers.append(self._start("worker", command))

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

    def reports(self, timeout_s: float) -> Reports:
        """What the workers have to say of each case, in the order of their ranks."""
        outputs = self.outputs(timeout_s)
        for worker, output in zip(self.workers, outputs, strict=True):
            assert worker.returncode == 0, output
        said = [json.loads(self._report(number).read_text()) for number in range(len(self.workers))]
        said.sort(key=lambda each: int(each["rank"]))
        return {case: [each["reports"][case] for each in said] for case in said[0]["reports"]}

    def close(self) -> None:
        for process in (*self.workers, *self._others):
            if process.poll() is None:
                process.kill()
        for process in (*self.workers, *self._others):
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10.0)


def need_kvstore() -> None:
    """Skip the test where MXNet has no distributed KVStore: its wheel for ARM, for one."""
    from mxnet.runtime import Features

    if not Features().is_enabled("DIST_KVSTORE"):
        pytest.skip("this MXNet was built without USE_DIST_KVSTORE")


@contextmanager
def cluster(*, workers: int = 2, servers: int = 2) -> Iterator[Cluster]:
    need_kvstore()
    with tempfile.TemporaryDirectory() as directory:
        made = Cluster(workers=workers, servers=servers, directory=Path(directory))
        try:
            yield made
        finally:
            made.close()


def run(*cases: str, workers: int = 2, servers: int = 2, timeout_s: float = 100.0) -> Reports:
    """Cases on every worker of one job; what each reports of each, by rank."""
    with cluster(workers=workers, servers=servers) as job:
        job.start_workers(cases)
        return job.reports(timeout_s)
