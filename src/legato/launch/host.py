"""The part of a job on this host: ranks by torchrun's agent, servers beside them."""

import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from legato.errors import DeadlineError, InputError, LegatoError
from legato.launch.failure import UNREACHED, Failure, ended, first
from legato.launch.servers import beside
from legato.launch.signals import ended_by_signals
from legato.records import build
from legato.settings import Level, Role, Settings, read_settings

MARK = "\x1elegato "
"""Begins a line on stderr that is for the launcher of several hosts."""
STARTED = MARK + "started"
_TORCHRUN_PORT = 29500
"""Where torchrun gathers hosts unless told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one host does of a job."""

    command: tuple[str, ...]
    """More of torchrun's options, the script and its arguments."""
    nproc_per_node: str = "1"
    """Ranks here, as torchrun writes it: a number, or `gpu`."""
    num_hosts: str = "1"
    """The same: a number, or `1:4`."""
    host_rank: int = 0
    address: str = "127.0.0.1"
    """Host 0's."""
    port: int | None = None
    """torchrun's, there; None takes a free one, or torchrun's own default if there are several hosts."""
    num_servers: int | None = None
    """Servers to start on host 0; None leaves servers to the environment."""
    num_workers: int | None = None
    """In the whole job; None is as many on each host as here."""
    runs_as: str | None = None
    """The module that runs the script."""
    is_led: bool = False
    """Whether another process launches several such parts: it sends the key on stdin and reads what failed."""

    @property
    def is_alone(self) -> bool:
        return self.num_hosts == "1"

    @property
    def torchrun(self) -> list[str]:
        """torchrun's command line."""
        options = ["--nproc-per-node", self.nproc_per_node, "--nnodes", self.num_hosts]
        if not self.is_alone:
            options += ["--node-rank", str(self.host_rank), "--master-addr", self.address]
        if self.port is not None:
            options += ["--master-port", str(self.port)]
        return [*options, *self.command]


def launch_part(part: Part) -> int:
    """Run it to its end; the exit code of the job, or of the member that failed first."""
    settings = read_settings(os.environ, rank=0, num_workers=1, num_servers=part.num_servers)
    # An environment for ranks and servers alike: the agent hands on its own.
    os.environ.update(environment_of(part, settings))
    failures: list[Failure] = []
    code = 0
    with tempfile.TemporaryDirectory(prefix="legato-run-") as name:
        folder = Path(name)
        try:
            _run(part, settings, folder, failures)
        except DeadlineError as error:
            failures.append(Failure(who="the job", host="", exit_code=UNREACHED, what=str(error)))
        except SystemExit as error:  # by a signal, which may be our own, for a server that failed
            code = int(str(error.code))
        failures += [Failure.from_json(note.read_text()) for note in folder.glob("rank-*.json")]
    failure = first(failures)
    if failure is None:
        return code
    print(MARK + failure.json() if part.is_led else failure, file=sys.stderr, flush=True)
    return failure.exit_code


def _run(part: Part, settings: Settings, folder: Path, failures: list[Failure]) -> None:
    torchrun = _load_torchrun()
    command = part.torchrun if part.runs_as is None else torchrun.run_by([part.runs_as], part.torchrun)
    command = torchrun.run_by(["legato.launch.rank", str(folder)], command)
    if part.num_servers and not part.num_hosts.isdecimal():
        raise InputError(f"--nnodes is {part.num_hosts!r}; accepted is a number of hosts, with --servers")
    num_servers = (part.num_servers or 0) if part.host_rank == 0 else 0
    environ = dict(os.environ)
    if num_servers:
        num_workers = part.num_workers or int(part.num_hosts) * torchrun.num_local_workers(command)
        environ.update(WORLD_SIZE=str(num_workers), LEGATO_MIXED=str(int(settings.role is Role.JOINT)))
        if part.port is not None or not part.is_alone:
            environ.update(MASTER_ADDR=part.address, MASTER_PORT=str(part.port or _TORCHRUN_PORT))
    with beside(environ, num_servers, folder, failures):
        gone = torchrun.run_agent(command, str(folder), settings.join_timeout_s)
    noted = {note.stem for note in folder.glob("rank-*.json")}
    failures += [ended(f"rank {one.rank}", one.returncode) for one in gone if f"rank-{one.rank}" not in noted]


def _load_torchrun() -> ModuleType:
    """Loaded here, since torch takes seconds; without the stacks that its C++ logs, of what is reported by us."""
    level = os.environ.get("TORCH_CPP_LOG_LEVEL")
    os.environ["TORCH_CPP_LOG_LEVEL"] = level or "FATAL"
    try:
        from legato.torch import torchrun
    except ImportError as error:
        raise InputError(f"legato run needs torch, whose agent starts ranks ({error}); pip install torch") from None
    if level is None:
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # it is not for ranks
    return torchrun


def environment_of(part: Part, settings: Settings) -> dict[str, str]:
    """A conductor at a port that is free, and a key that is this job's alone, where nobody has said more."""
    environ = {}
    starts_all = settings.num_servers == (part.num_servers or 0)  # other servers must know where and by which key
    told = {found.setting.name for found in settings.found if found.level is not Level.DEFAULT}
    if part.num_servers is not None:
        environ["LEGATO_SERVERS"] = str(part.num_servers)
    if part.is_alone and part.port is None and starts_all and "conductor" not in told:
        environ["LEGATO_CONDUCTOR"] = f"127.0.0.1:{free_port()}"
    if part.is_alone and starts_all and settings.key is None and not settings.insecure:
        environ["LEGATO_KEY"] = secrets.token_hex(32)
    return environ


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _follow() -> None:
    """Take the key from who leads, and end when it is gone: remote shells pass on no signals, but they close stdin."""
    print(STARTED, file=sys.stderr, flush=True)
    os.environ["LEGATO_KEY"] = sys.stdin.readline().strip()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_for_the_end, daemon=True).start()


def main(arguments: list[str]) -> int:
    """The part of a job that is launched from another host, in JSON."""
    part = build(Part, json.loads(arguments[0]))
    _follow()
    with ended_by_signals():
        try:
            return launch_part(part)
        except LegatoError as error:
            print(MARK + Failure(who="host", exit_code=2, what=" ".join(str(error).split())).json(), file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
