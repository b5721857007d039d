"""Python programs that start at once: forks of a process that has loaded torch, which takes seconds.

A fork comes back to the end of this file and runs its program there as Python would: what becomes of errors, signals
and what is registered `atexit` is the interpreter's own doing.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 250


class Program:
    """As much of `subprocess.Popen`, with pipes of text, as tests use."""

    def __init__(self, stdin: IO[str], stdout: IO[str], stderr: IO[str], status: IO[bytes]) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._status = status
        self.pid = _received(status)
        self.returncode: int | None = None

    def wait(self, timeout: float = TIMEOUT_S) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
            with self._status:
                self.returncode = _received(self._status)
        return self.returncode

    def communicate(self, timeout: float = TIMEOUT_S) -> tuple[str, str]:
        """What it has said when it is over; nothing if this was asked before."""
        said = ["", ""]

        def read(index: int, stream: IO[str]) -> None:
            with stream:
                said[index] = stream.read()

        self.stdin.close()
        streams = [(index, each) for index, each in enumerate((self.stdout, self.stderr)) if not each.closed]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise TimeoutError(f"process {self.pid} has ended, but others still hold its output open")
        return said[0], said[1]

    def send_signal(self, sent: signal.Signals) -> None:
        if self.returncode is None and not select.select([self._status], [], [], 0)[0]:
            os.kill(self.pid, sent)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self.wait()


class Programs:
    """Starts them, with `modules` loaded already."""

    def __init__(self, *modules: str) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.programs", str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])

    def start(self, *command: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Program:
        """`python COMMAND`: a script, or -m and a module, or -c and what to run, and its arguments."""
        request = json.dumps([command, str(cwd), dict(os.environ if env is None else env)])
        (stdin, to_it), (from_it, stdout), (errors, stderr), (status, told) = (os.pipe() for _ in range(4))
        its_own = [stdin, stdout, stderr, told]
        socket.send_fds(self._channel, [request.encode()], its_own)
        for each in its_own:
            os.close(each)
        return Program(os.fdopen(to_it, "w"), os.fdopen(from_it), os.fdopen(errors), os.fdopen(status, "rb", 0))

    def run(self, *command: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """The same to its end: its exit code, and what it has said."""
        with self.start(*command, cwd=cwd, env=env) as program:
            output, errors = program.communicate()
        return program.wait(), output, errors

    def close(self) -> None:
        self._channel.close()
        self._process.wait(TIMEOUT_S)


def _received(status: IO[bytes]) -> int:
    return int.from_bytes(status.read(4), "little", signed=True)


# ---- the process that forks ----


def _tell(status: int, number: int) -> None:
    os.write(status, number.to_bytes(4, "little", signed=True))


def _serve(channel: socket.socket) -> list[str]:
    """Fork for every request until nobody asks any more; returns in a fork, with the command that it is to run."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([channel.fileno(), *running], [], [])[0]:
            if ready != channel.fileno():
                pid, status = running.pop(ready)
                _tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(status)
                os.close(ready)
                continue
            request, files, _, _ = socket.recv_fds(channel, 1 << 20, 4)
            if not request:
                sys.exit()
            if (pid := os.fork()) == 0:
                for place, file in enumerate(files[:-1]):
                    os.dup2(file, place)
                channel.close()
                for file in (*files, *running, *(status for _, status in running.values())):
                    os.close(file)
                return _begin(*json.loads(request))
            *_, status = files
            _tell(status, pid)
            running[os.pidfd_open(pid)] = (pid, status)
            for file in files[:-1]:
                os.close(file)


def _begin(command: list[str], cwd: str, environ: dict[str, str]) -> list[str]:
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    return command


def _run(command: Sequence[str]) -> None:
    """As `python COMMAND` does."""
    first, *rest = command
    if first == "-m":
        sys.argv = rest
        sys.path[0] = str(Path.cwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # what Python itself calls
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).resolve().parent)
        main.__file__ = first
        code = compile(Path(first).read_text(), first, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        __import__(name)
    gc.freeze()  # or every fork would copy all of it, as soon as garbage is collected, and at its end
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
