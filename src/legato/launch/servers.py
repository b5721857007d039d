"""The servers of a job: processes of this host that end with the launcher, and take it along if they fail."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from legato.launch.failure import Failure, ended

_GRACE_S = 5.0
"""How long a server that could not go on waits for ranks to say why; how long one that shall end may take."""
_MISTAKE = 2
"""The exit code of `legato server` where it cannot go on: mostly since ranks are gone."""


class Servers:
    """Server processes from `start` to `stop`."""

    def __init__(self, environ: Mapping[str, str], num_servers: int, folder: Path) -> None:
        self._over = threading.Event()
        self._failures: list[Failure] = []
        self._logs = [folder / f"server-{index}.log" for index in range(num_servers)]
        self._processes = [start_server(environ, log) for log in self._logs]
        self._watchers = [
            threading.Thread(target=self._watch, args=(index,), daemon=True) for index in range(num_servers)
        ]
        for watcher in self._watchers:
            watcher.start()

    def _watch(self, index: int) -> None:
        """A job cannot go on without a server: end the ranks, unless they end by themselves."""
        returncode = self._processes[index].wait()
        if returncode == 0 or self._over.is_set():
            return
        failure = failure_of(f"server {index}", returncode, self._logs[index])
        self._failures.append(failure)
        if not self._over.wait(_GRACE_S if failure.is_consequence else 0.0):
            os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> list[Failure]:
        """End those that run; what has failed before."""
        self._over.set()
        for process in self._processes:
            process.terminate()
        for process, watcher in zip(self._processes, self._watchers, strict=True):
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            watcher.join()
        return self._failures

    def finish(self) -> None:
        """Wait for servers whose workers have left."""
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def start_server(environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """What it says goes to the log."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "legato.cli", "server"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,  # Ctrl-C is the launcher's: it ends them in order
        )


def failure_of(who: str, returncode: int, log: Path) -> Failure:
    """How a server has ended, in its last words where it has any."""
    said = log.read_text().strip().splitlines()
    if returncode == _MISTAKE and said:
        return Failure(who=who, exit_code=1, what=said[-1].removeprefix("legato: "), is_consequence=True)
    return ended(who, returncode)


@contextlib.contextmanager
def beside(environ: Mapping[str, str], num_servers: int, folder: Path, failures: list[Failure]) -> Iterator[None]:
    """Servers beside the ranks; their failures are added to the others."""
    servers = Servers(environ, num_servers, folder)
    try:
        yield
        servers.finish()
    finally:
        failures.extend(servers.stop())
