"""Elastic jobs of real processes: started, killed, stopped, brought back, and what they say checked."""

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from legato.launch.servers import start_server
from legato.testing import elastic_worker
from legato.testing.elastic_worker import Death, Loop
from legato.testing.ports import free_port

TIMEOUT_S = 120.0
NEVER = 10**9
"""Steps of a job that ends when it is told to."""
_MORE_STEPS = 300
"""Nobody is as far when it hears of it."""

Start = Callable[[int, Callable[..., None], tuple[object, ...]], BaseProcess]
"""Starts a process for the worker of this identity: (identity, function, arguments)."""

_processes = multiprocessing.get_context("forkserver")
# Torch is imported once, not by every worker, with what its optimizers import when they are first used.
_processes.set_forkserver_preload(["legato.testing.elastic_worker", "torch._dynamo"])


def start_here(identity: int, function: Callable[..., None], arguments: tuple[object, ...]) -> BaseProcess:
    """All workers are on this host."""
    process = _processes.Process(target=function, args=arguments, name=f"worker{identity}")
    process.start()
    return process


class Process:
    """One worker, and what it has said."""

    def __init__(
        self,
        identity: int,
        num_steps: int,
        environ: dict[str, str],
        log: Path,
        loop: type[Loop],
        death: Death | None,
        start: Start,
    ) -> None:
        self.identity = identity
        self.said: list[dict[str, Any]] = []
        self.told_s: list[float] = []
        """When, by this process's clock."""
        self._log = log
        self._link, theirs = _processes.Pipe()
        arguments = (identity, num_steps, environ, theirs, str(log), loop, death)
        self._process = start(identity, elastic_worker.run, arguments)
        theirs.close()
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                words = json.loads(self._link.recv_bytes())
                with self._changed:
                    self.said.append(words)
                    self.told_s.append(time.monotonic())
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def __str__(self) -> str:
        return f"worker {self.identity}"

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end_after(self, step: int) -> None:
        self._link.send_bytes(str(step).encode())

    def wait_until(
        self, step: int, size: int | None = None, *, servers: int | None = None, changed: bool = False
    ) -> dict[str, Any]:
        """It has come so far, with so many workers and servers; and, with `changed`, has told of another epoch."""

        def found() -> dict[str, Any] | None:
            for told in self.said[::-1]:
                if told.get("step", step) < step:
                    break
                if "step" not in told or (changed and not told["changes"]):
                    continue
                if size in (None, told["size"]) and servers in (None, told["servers"]):
                    return told
            return None

        with self._changed:
            self._changed.wait_for(lambda: found() or not self._reader.is_alive(), TIMEOUT_S)
            line = found()
            assert line is not None, (self.identity, step, size, servers, self.said[-3:], self.log)
            return line

    @property
    def settled(self) -> list[dict[str, Any]]:
        """What it has said of its steps. Of one that was killed, not the last: who is lost together with it may have
        sent it an average, and to nobody else; the others then make that without the two."""
        told = [line for line in self.said if "step" in line]
        return told[:-1] if self.exit_status == -signal.SIGKILL else told

    @property
    def exit_status(self) -> int | None:
        """None while it lives."""
        return self._process.exitcode

    @property
    def step(self) -> int:
        return max((each.get("step", 0) for each in self.said), default=0)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(TIMEOUT_S)

    def finish(self) -> int | None:
        """Its exit status, when it has ended."""
        self._process.join(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return self._process.exitcode

    def close(self) -> None:
        if self._process.is_alive():
            self.signal(signal.SIGCONT)
            self.kill()
        self._reader.join(TIMEOUT_S)
        self._link.close()
        self._process.close()


class ServerProcess:
    """One server."""

    def __init__(self, environ: dict[str, str], log: Path) -> None:
        self._log = log
        self._process = start_server({**os.environ, **environ}, log)

    def __str__(self) -> str:
        return f"server {self.pid}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def finish(self) -> int:
        """Its exit status, when it has ended."""
        try:
            return self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log) from None


class ElasticJob:
    """Starts workers and servers; identities are those of the gradients, whatever ranks they get."""

    def __init__(
        self,
        directory: Path,
        num_workers: int,
        num_steps: int,
        minimum: int,
        num_servers: int,
        loop: type[Loop],
        death: Death | None,
        start: Start,
        **settings: str,
    ) -> None:
        self._loop = loop
        self._death = death
        self._start = start
        self._num_steps = num_steps
        self._directory = directory
        self._local_size = int(settings.get("LOCAL_WORLD_SIZE", num_workers))
        self._environ = {
            "WORLD_SIZE": str(num_workers),
            "LOCAL_WORLD_SIZE": str(self._local_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "LEGATO_ELASTIC": str(minimum),
            "LEGATO_SERVERS": str(num_servers),
            "LEGATO_MIXED": str(int(settings.get("LEGATO_ROLE") != "worker")),
            "LEGATO_MEMBERS_FILE": str(directory / "members"),
            "LEGATO_KEY": "a key that only this test has, long enough",
            "LEGATO_HEARTBEAT_S": "2",
            "LEGATO_TIMEOUT_S": "30",
            "OMP_NUM_THREADS": "1",
            **settings,
        }
        self.processes: dict[int, Process] = {}
        self.ended: list[Process] = []
        self.servers: list[ServerProcess] = []
        """All that were ever started."""
        for _ in range(num_servers):
            self.start_server()
        for rank in range(num_workers):
            self.start(rank, rank)

    def start(self, identity: int, rank: int) -> Process:
        if identity in self.processes:
            self.ended.append(self.processes[identity])
        environ = {**self._environ, "RANK": str(rank), "LOCAL_RANK": str(rank % self._local_size)}
        log = self._directory / f"{identity}.{len(self.ended)}.log"
        process = Process(identity, self._num_steps, environ, log, self._loop, self._death, self._start)
        self.processes[identity] = process
        return process

    @property
    def serving(self) -> list[ServerProcess]:
        """Servers that have not ended."""
        return [server for server in self.servers if server.is_alive]

    @property
    def living(self) -> list[Process | ServerProcess]:
        """Workers and servers that have not ended."""
        return [*self.processes.values(), *self.serving]

    def start_server(self, **settings: str) -> ServerProcess:
        environ, log = {**self._environ, **settings}, self._directory / f"server.{len(self.servers)}.log"
        self.servers.append(ServerProcess(environ, log))
        return self.servers[-1]

    def end(self) -> None:
        """Have everybody end after the same step, a while from now."""
        last_step = max(process.step for process in self.processes.values()) + _MORE_STEPS
        for process in self.processes.values():
            process.end_after(last_step)

    def finish(self, *identities: int) -> None:
        for identity in identities:
            process = self.processes[identity]
            assert process.finish() == 0, (identity, process.said[-3:], process.log)

    @property
    def last_words(self) -> str:
        """Of all workers that should be here, and of the last server: whoever misses one must look at that one."""
        workers, servers = self.processes.values(), self.servers[-1:]
        words = [
            *(f"{each}, exit status {each.exit_status}: {each.said[-1:]}\n{each.log[-2000:]}" for each in workers),
            *(f"{each}, alive: {each.is_alive}\n{each.log[-2000:]}" for each in servers),
        ]
        return "\n".join(words)

    @property
    def averages(self) -> set[float]:
        """Of gradients of any of its workers."""
        num_identities = max(process.identity for process in [*self.processes.values(), *self.ended]) + 1
        return {mask / mask.bit_count() for mask in range(1, 2**num_identities)}

    def check_sums(self, possible: Collection[float] | None = None, rounding: float = 1e-3) -> None:
        """No two workers differ after the same step, every layer changed as a whole, and each step's averages are of
        whole gradients, each at most once; where steps are more than averages, `possible` says what they are."""
        values: dict[int, list[list[float]]] = {}
        words: dict[int, dict[str, float]] = {}
        for process in [*self.processes.values(), *self.ended]:
            for line in process.settled:
                for low, high in line["values"]:
                    assert low == high, line
                known = values.setdefault(line["step"], line["values"])
                assert line["values"] == known, (process.identity, line, known)
                own: dict[str, float] = {key: line[key] for key in ("norm", "scale", "rate") if key in line}
                assert not own or own == words.setdefault(line["step"], own), (process.identity, line)
        possible = self.averages if possible is None else possible
        largest = max(possible)
        steps = sorted(values)
        for before, after in pairwise(steps):
            for (old, _), (new, _) in zip(values[before], values[after], strict=True):
                change = old - new
                allowed = rounding * (after - before) + abs(new) * 2.0**-22  # float32: weights grow with every step
                assert 0 < change <= largest * (after - before) + allowed, (before, after, change)
                if after == before + 1:
                    assert min(abs(change - each) for each in possible) < allowed, (before, after, change)

    def close(self) -> None:
        for process in [*self.processes.values(), *self.ended]:
            process.close()
        for server in self.servers:
            server.kill()


@contextmanager
def elastic_job(
    directory: Path,
    num_workers: int,
    num_steps: int,
    *,
    minimum: int = 1,
    num_servers: int = 0,
    loop: type[Loop] = Loop,
    death: Death | None = None,
    start: Start = start_here,
    **settings: str,
) -> Iterator[ElasticJob]:
    job = ElasticJob(directory, num_workers, num_steps, minimum, num_servers, loop, death, start, **settings)
    try:
        yield job
    except BaseException as error:
        error.add_note(job.last_words)
        raise
    finally:
        job.close()
