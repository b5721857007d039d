"""An elastic job on this host: ranks and servers that are started here, and again when they fail (`legato run --min
--max`).

One that comes back finds those that train through the members file, which they keep up to date. `restarts` decides who
may come back; here are the processes.
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
from legato.launch.restarts import Elastic, Members, State
from legato.launch.servers import failure_of, start_server
from legato.launch.signals import on_signals
from legato.settings import Role, Settings, read_settings

_GRACE_S = 30.0
"""How long ranks may take to end, as torchrun has it."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A member's process is over, and has yet to be reaped: until then nobody else gets its number."""

    member: int


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
    with tempfile.TemporaryDirectory(prefix="legato-run-") as name:
        folder = Path(name)
        module = ["legato.launch.rank", name, *([] if part.runs_as is None else ["-m", part.runs_as])]
        supervisor = _Supervisor(
            [sys.executable, "-u", "-m", *module, *part.command],
            {**_inherited(), **environment_of(part, settings), **_environment(part, settings, elastic)},
            folder,
            replace(elastic, num_servers=part.num_servers or 0),
        )
        with on_signals(supervisor.tell):
            return supervisor.run()


class _Supervisor:
    """Starts ranks and servers, waits for what becomes of them, and ends with none left."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folder: Path, elastic: Elastic) -> None:
        self._command = list(command)
        self._members_file = folder / "members"
        self._environ = {**environ, "LEGATO_MEMBERS_FILE": str(self._members_file)}
        self._folder = folder
        self._elastic = elastic
        self._members = Members(elastic, time.monotonic())
        self._running: dict[int, _Running] = {}
        self._recalled: set[int] = set()
        """Those that were about to join members who are gone."""
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
        while not self._members.is_over:
            for member in self._members.due(time.monotonic()):
                self._start(member)
            event = self._next_event(self._members.next_s())
            if isinstance(event, _Told):
                return 128 + event.signal
            if event is not None:
                self._follow(event.member)
        if self._members.is_enough:
            return 0
        failure = Failure(who="the job", host="", exit_code=TOO_FEW, what=self._why_over())
        _say(str(failure))
        return failure.exit_code

    def _start(self, member: int) -> None:
        started_ns = time.time_ns()
        start = self._start_server if self._serves(member) else self._start_rank
        process = start(member)
        self._running[member] = _Running(process, started_ns)
        self._members.started(member, time.monotonic())
        threading.Thread(target=self._watch, args=(member, process), daemon=True).start()

    def _start_rank(self, rank: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            env={**self._environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the launcher's; and what a rank leaves behind can be found
        )

    def _start_server(self, server: int) -> subprocess.Popen[bytes]:
        return start_server(self._environ, self._log_of(server))

    def _serves(self, member: int) -> bool:
        return member >= self._elastic.max_workers

    def _log_of(self, server: int) -> Path:
        return self._folder / f"server-{server}.log"

    def _watch(self, member: int, process: subprocess.Popen[bytes]) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._events.put(_Ended(member))

    def _reap(self, member: int) -> int:
        """How one that is over has ended; what a rank that failed has left behind ends now."""
        process = self._running.pop(member).process
        how = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert how is not None
        if (how.si_code, how.si_status) != (os.CLD_EXITED, 0):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def _follow(self, member: int) -> None:
        returncode = self._reap(member)
        if returncode == 0:
            self._members.finished(member)
            return
        if member in self._recalled:
            self._recalled.remove(member)
            self._members.recalled(member, time.monotonic())
            return
        failure = self._read_failure(member, returncode)
        pause_s = self._members.failed(member, time.monotonic())
        what_next = "it is not started again" if pause_s is None else f"it starts again in {pause_s:g} s"
        _say(f"{failure}; {what_next}")
        self._forget_members_that_are_gone()

    def _read_failure(self, member: int, returncode: int) -> Failure:
        if self._serves(member):
            return failure_of(f"server {member}", returncode, self._log_of(member))
        note = self._folder / f"rank-{member}.json"
        try:
            failure = Failure.from_json(note.read_text())
        except FileNotFoundError:
            return ended(f"rank {member}", returncode)
        note.unlink()
        return replace(failure, trace="") if failure.is_consequence else failure

    def _forget_members_that_are_gone(self) -> None:
        """Where no rank runs that may have written the members file, the ranks form the job anew; those that have
        started since, too, and wait for members who are gone; and servers with them."""
        try:
            written_ns = self._members_file.stat().st_mtime_ns
        except FileNotFoundError:
            return
        ranks = [each for member, each in self._running.items() if not self._serves(member)]
        if all(each.started_ns > written_ns for each in ranks):
            self._members_file.unlink()
            for member, each in self._running.items():
                self._recalled.add(member)
                os.killpg(each.process.pid, signal.SIGKILL)

    def _why_over(self) -> str:
        num_left = self._members.num_left
        left = "no rank is left" if num_left == 0 else f"{num_left} of {self._elastic.max_workers} ranks left"
        done = self._members.count(State.DONE)
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
                self._reap(event.member)
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


def _environment(part: Part, settings: Settings, elastic: Elastic) -> dict[str, str]:
    """What torchrun tells its ranks, that the job is elastic, and for servers, whether workers sum, too."""
    size = str(elastic.max_workers)
    return {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": part.address,
        "MASTER_PORT": str(part.port or free_port()),
        "LEGATO_ELASTIC": str(elastic.min_workers),
        "LEGATO_MIXED": str(int(settings.role is Role.JOINT)),
    }
