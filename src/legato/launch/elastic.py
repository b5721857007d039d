"""An elastic job on this host: ranks that are started here, and again when they fail (`legato run --min --max`).

A rank that comes back finds those that train through the members file, which they keep up to date. `restarts` decides
who may come back; here are the processes.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from legato.errors import InputError
from legato.launch.failure import TOO_FEW, Failure, ended
from legato.launch.host import Part, environment_of, free_port
from legato.launch.restarts import Elastic, Ranks, State
from legato.launch.signals import on_signals
from legato.settings import read_settings

_GRACE_S = 30.0
"""How long ranks may take to end, as torchrun has it."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A rank's process is over, and has yet to be reaped: until then nobody else gets its number."""

    rank: int


@dataclass(frozen=True, slots=True)
class _Told:
    """This process was told to end, by a signal."""

    signal: int


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    """Signalled by its number: its own methods would reap it behind the watcher's back."""
    started_ns: int


def launch_elastic(part: Part, elastic: Elastic) -> int:
    """Run it to its end; the exit code: 0 where enough ranks have ended well."""
    option = part.command[0]
    if option.startswith("-") and option != "-m":
        raise InputError(f"{option}: options of torchrun have no effect with --min, its agent does not start the ranks")
    settings = read_settings(os.environ, rank=0, num_workers=1, num_servers=part.num_servers)
    if settings.num_servers:
        raise InputError(f"{settings.num_servers} servers: an elastic job has none (--servers, LEGATO_SERVERS)")
    with tempfile.TemporaryDirectory(prefix="legato-run-") as name:
        folder = Path(name)
        module = ["legato.launch.rank", name, *([] if part.runs_as is None else ["-m", part.runs_as])]
        supervisor = _Supervisor(
            [sys.executable, "-u", "-m", *module, *part.command],
            {**_inherited(), **environment_of(part, settings), **_environment(part, elastic)},
            folder,
            elastic,
        )
        with on_signals(supervisor.tell):
            return supervisor.run()


class _Supervisor:
    """Starts ranks, waits for what becomes of them, and ends with none left."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folder: Path, elastic: Elastic) -> None:
        self._command = list(command)
        self._members = folder / "members"
        self._environ = {**environ, "LEGATO_MEMBERS_FILE": str(self._members)}
        self._folder = folder
        self._elastic = elastic
        self._ranks = Ranks(elastic, time.monotonic())
        self._running: dict[int, _Running] = {}
        self._recalled: set[int] = set()
        """Ranks that were about to join members who are gone."""
        self._events: queue.SimpleQueue[_Ended | _Told] = queue.SimpleQueue()
        """The only queue that a signal's handler may put something into."""

    def tell(self, number: int) -> None:
        self._events.put(_Told(number))

    def run(self) -> int:
        try:
            return self._supervise()
        finally:
            self._end()

    def _supervise(self) -> int:
        while not self._ranks.is_over:
            for rank in self._ranks.due(time.monotonic()):
                self._start(rank)
            event = self._next_event(self._ranks.next_s())
            if isinstance(event, _Told):
                return 128 + event.signal
            if event is not None:
                self._follow(event.rank)
        if self._ranks.is_enough:
            return 0
        failure = Failure(who="the job", host="", exit_code=TOO_FEW, what=self._why_over())
        _say(str(failure))
        return failure.exit_code

    def _start(self, rank: int) -> None:
        started_ns = time.time_ns()
        process = subprocess.Popen(
            self._command,
            env={**self._environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the launcher's; and what a rank leaves behind can be found
        )
        self._running[rank] = _Running(process, started_ns)
        self._ranks.started(rank, time.monotonic())
        threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._events.put(_Ended(rank))

    def _reap(self, rank: int) -> int:
        """How a rank that is over has ended; what one that failed has left behind ends now."""
        process = self._running.pop(rank).process
        how = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert how is not None
        if (how.si_code, how.si_status) != (os.CLD_EXITED, 0):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def _follow(self, rank: int) -> None:
        returncode = self._reap(rank)
        if returncode == 0:
            self._ranks.finished(rank)
            return
        if rank in self._recalled:
            self._recalled.remove(rank)
            self._ranks.recalled(rank, time.monotonic())
            return
        failure = self._read_failure(rank, returncode)
        pause_s = self._ranks.failed(rank, time.monotonic())
        what_next = "it is not started again" if pause_s is None else f"it starts again in {pause_s:g} s"
        _say(f"{failure}; {what_next}")
        self._forget_members_that_are_gone()

    def _read_failure(self, rank: int, returncode: int) -> Failure:
        note = self._folder / f"rank-{rank}.json"
        try:
            failure = Failure.from_json(note.read_text())
        except FileNotFoundError:
            return ended(f"rank {rank}", returncode)
        note.unlink()
        return replace(failure, trace="") if failure.is_consequence else failure

    def _forget_members_that_are_gone(self) -> None:
        """Where nobody runs who may have written the members file, the ranks form the job anew; those that have started
        since, too, and wait for members who are gone."""
        try:
            written_ns = self._members.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if all(each.started_ns > written_ns for each in self._running.values()):
            self._members.unlink()
            for rank, each in self._running.items():
                self._recalled.add(rank)
                os.killpg(each.process.pid, signal.SIGKILL)

    def _why_over(self) -> str:
        num_left = self._ranks.num_left
        left = "no rank is left" if num_left == 0 else f"{num_left} of {self._elastic.max_workers} ranks left"
        done = self._ranks.count(State.DONE)
        return (
            f"{left}{f', {done} of them done' if done else ''}; it needs {self._elastic.min_workers} (--min), and "
            f"restarts are limited to {self._elastic.limit}"
        )

    def _end(self) -> None:
        """End all that run; at once, if they do not end in time or the signal comes again."""
        for each in self._running.values():
            os.kill(each.process.pid, signal.SIGTERM)
        deadline_s: float | None = time.monotonic() + _GRACE_S
        while self._running:
            event = self._next_event(deadline_s)
            if isinstance(event, _Ended):
                self._reap(event.rank)
                continue
            for each in self._running.values():
                os.killpg(each.process.pid, signal.SIGKILL)
            deadline_s = None

    def _next_event(self, deadline_s: float | None) -> _Ended | _Told | None:
        """None where there is none in time."""
        try:
            return self._events.get(timeout=None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0))
        except queue.Empty:
            return None


def _say(line: str) -> None:
    """In one piece, also where Python is unbuffered (PYTHONUNBUFFERED): ranks write to the same stream."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)


def _inherited() -> dict[str, str]:
    """This process's environment without what a torchrun around it says of restarts, and with its number of threads."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return {"OMP_NUM_THREADS": "1"} | inherited


def _environment(part: Part, elastic: Elastic) -> dict[str, str]:
    """What torchrun tells its ranks, and that the job is elastic."""
    size = str(elastic.max_workers)
    return {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": part.address,
        "MASTER_PORT": str(part.port or free_port()),
        "LEGATO_ELASTIC": str(elastic.min_workers),
    }
