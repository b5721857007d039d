"""A job on several hosts, from one of them: a part on each, started by a remote shell.

here                                      each host
  remote shell HOST python … ────────────►  starts its part (host.py)
  stdin ── key ──────────────────────────►  ends when stdin does
  stderr ◄── what it says ── how it failed
"""

import contextlib
import json
import os
import queue
import secrets
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from legato.errors import InputError
from legato.launch.failure import UNREACHED, Failure, ended, first
from legato.launch.host import MARK, STARTED, Part, launch_part
from legato.predecessors import PREFIXES
from legato.settings import read_settings
from legato.variables import PREFIX

_GRACE_S = 10.0
"""How long hosts have to say why they failed, and then to end."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host and how many ranks it runs."""

    name: str
    num_ranks: int

    @property
    def is_here(self) -> bool:
        return self.name in ("localhost", "127.0.0.1", socket.gethostname())

    @property
    def is_loopback(self) -> bool:
        """By its name: what a host is to itself is often an address of the loopback, and not so to others."""
        return self.name == "localhost" or self.name.startswith("127.")


def parse_hosts(text: str, num_ranks: int | None) -> list[Host]:
    """`a:4,b:4`, as horovodrun's -H: the hosts of a job of so many ranks, or of as many as there is room for."""
    hosts: list[Host] = []
    left = num_ranks
    for each in text.split(","):
        name, _, room = each.strip().partition(":")
        if not name or not (room or "1").isdecimal() or int(room or "1") < 1:
            raise InputError(f"--hosts is {text!r}; accepted are names with their numbers of ranks, such as a:4,b:4")
        taken = int(room or "1") if left is None else min(left, int(room or "1"))
        left = None if left is None else left - taken
        if taken:
            hosts.append(Host(name, taken))
    if left:
        raise InputError(f"-np is {num_ranks}, but --hosts {text} has room for {sum(host.num_ranks for host in hosts)}")
    return hosts


@dataclass(slots=True)
class _Started:
    """A host's part, as seen from here."""

    host: Host
    process: subprocess.Popen[str]
    has_begun: bool = False
    """Whether the remote shell got there."""
    said: list[str] = field(default_factory=list)
    """What it said before."""
    failure: Failure | None = None


def launch_hosts(hosts: Sequence[Host], part: Part, shell: str) -> int:
    """Run a job to its end, with a part like this on each host; the exit code, as on one host."""
    if len(hosts) == 1 and hosts[0].is_here:
        return launch_part(replace(part, nproc_per_node=str(hosts[0].num_ranks)))
    for host in hosts:
        if hosts[0].is_loopback and not host.is_loopback:
            raise InputError(f"--hosts begins with {hosts[0].name}, where {host.name} cannot reach it; give its name")
    settings = read_settings(os.environ, rank=0, num_workers=1)
    key = settings.key.decode() if settings.key is not None else secrets.token_hex(32)
    over: queue.Queue[_Started] = queue.Queue()
    parts = [_start(hosts, index, part, shell) for index in range(len(hosts))]
    readers = [threading.Thread(target=_read, args=(part, key, over), daemon=True) for part in parts]
    try:
        for reader in readers:
            reader.start()
        for _ in parts:
            if over.get().process.returncode != 0:
                break
        failed = [part for part in parts if part.failure is not None and not part.failure.is_consequence]
        if not failed:  # the reason is still on its way, if there is one
            _wait(parts)
    finally:
        _end(parts)
    for reader in readers:
        reader.join()
    failure = first(part.failure for part in parts if part.failure is not None)
    if failure is None:
        return 0
    print(failure, file=sys.stderr)
    return failure.exit_code


def _start(hosts: Sequence[Host], index: int, part: Part, shell: str) -> _Started:
    host = hosts[index]
    its_part = replace(
        part,
        nproc_per_node=str(host.num_ranks),
        num_hosts=str(len(hosts)),
        host_rank=index,
        address=hosts[0].name,
        num_workers=sum(each.num_ranks for each in hosts),
        is_led=True,
    )
    words = [sys.executable, "-m", "legato.launch.host", json.dumps(asdict(its_part))]
    environ = [f"{name}={value}" for name, value in os.environ.items() if name.startswith((PREFIX, *PREFIXES))]
    line = shlex.join(["env", *(each for each in environ if not each.startswith("LEGATO_KEY")), *words])
    line = f"cd {shlex.quote(str(Path.cwd()))} && exec {line}"
    process = subprocess.Popen(
        ["sh", "-c", line] if host.is_here else [*shlex.split(shell), host.name, line],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is the launcher's: it ends them in order
    )
    return _Started(host, process)


def _read(part: _Started, key: str, over: "queue.Queue[_Started]") -> None:
    """Send the key, pass on what is said, and keep how it failed."""
    process = part.process
    assert process.stdin is not None
    assert process.stderr is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(key + "\n")
        process.stdin.flush()
    for line in process.stderr:
        if line.startswith(STARTED):
            part.has_begun = True
        elif line.startswith(MARK):
            part.failure = Failure.from_json(line.removeprefix(MARK))
        elif part.has_begun:
            sys.stderr.write(line)
        else:
            part.said.append(line.strip())
    returncode = process.wait()
    if returncode != 0 and part.failure is None:
        # What a shell gives for a signal, and what it is to its parent.
        failure = ended(f"host {part.host.name}", 128 - returncode if returncode > 128 else returncode)
        if not part.has_begun:
            said = "; ".join(filter(None, part.said)) or failure.what
            failure = replace(failure, exit_code=UNREACHED, what=f"it cannot be reached ({said})", is_consequence=False)
        part.failure = replace(failure, host="")
    over.put(part)


def _wait(parts: Sequence[_Started]) -> None:
    for part in parts:
        with contextlib.suppress(subprocess.TimeoutExpired):
            part.process.wait(_GRACE_S)


def _end(parts: Sequence[_Started]) -> None:
    """Closing stdin ends a part, wherever it is."""
    for part in parts:
        assert part.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            part.process.stdin.close()
    _wait(parts)
    for part in parts:
        part.process.kill()
        part.process.wait()
