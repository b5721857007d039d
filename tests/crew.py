"""A crew: processes that stay, each with a framework loaded, and play the ranks of one small job after another.

A framework's tests say what surrounds each function that is played there (`Around`), and where it is imported: in the
crew's processes only.
"""

import io
import multiprocessing
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

from legato.settings import Role, read_settings
from legato.testing.ports import free_port
from legato.transports.native.session import Server

_SERVER = multiprocessing.get_context("forkserver")
"""Processes are forks of one that has loaded what all need, also those that take a lost one's place."""
TIMEOUT_S = 250
EXAMPLES = Path(__file__).parent.parent / "examples"
HEARTBEAT_S = "30"
"""Processes that load a framework or compile keep two cores busy for longer than a heartbeat usually may take."""

Around = Callable[[], AbstractContextManager[None]]


def place_of(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank of a job on this machine."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LEGATO_HEARTBEAT_S": HEARTBEAT_S,
    }


class LostError(Exception):
    """The process has ended, by itself or by this signal; another one takes its place."""

    def __init__(self, exitcode: int | None) -> None:
        super().__init__(exitcode)
        self.exitcode = exitcode


class Crew:
    """`run` calls a function of a test module on every rank, and gathers what it returns."""

    def __init__(self, around: Around, size: int = 2, preload: Sequence[str] = (), **environ: str) -> None:
        _SERVER.set_forkserver_preload([*preload])
        self._start = partial(_start, around, environ)
        self._members = [self._start() for _ in range(size)]

    def run(self, function: Callable[..., Any], *arguments: Any, size: int = 2, **environ: str) -> list[Any]:
        """What the function returned on each rank; the first error of any rank otherwise."""
        outcomes = self.outcomes(function, *arguments, size=size, **environ)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def outcomes(self, function: Callable[..., Any], *arguments: Any, size: int = 2, **environ: str) -> list[Any]:
        """What each rank returned or raised, or that it is lost."""
        port = free_port()
        for rank, (pipe, _) in enumerate(self._members[:size]):
            pipe.send((function, arguments, {**place_of(rank, size, port), **environ}))
        outcomes = []
        for rank, (pipe, process) in enumerate(self._members[:size]):
            if not pipe.poll(TIMEOUT_S):
                process.kill()  # it does not come back; the next test needs another
            try:
                outcomes.append(pipe.recv())
            except EOFError:
                process.join(TIMEOUT_S)
                outcomes.append(LostError(process.exitcode))
                pipe.close()
                self._members[rank] = self._start()
        return outcomes

    def close(self) -> list[int | None]:
        """How each process ended."""
        for pipe, _ in self._members:
            pipe.close()
        for _, process in self._members:
            process.join(TIMEOUT_S)
        return [process.exitcode for _, process in self._members]


def _start(around: Around, environ: dict[str, str]) -> tuple[Connection, ForkServerProcess]:
    ours, theirs = _SERVER.Pipe()
    process = _SERVER.Process(target=_work, args=(theirs, around, environ), daemon=True)
    process.start()
    theirs.close()
    return ours, process


class Room(Protocol):
    """A framework's, as far as a crew needs it."""

    def shutdown(self, *, now: bool = False) -> None: ...


@contextmanager
def leaving(room: Room) -> Iterator[None]:
    """Leave the job afterwards; at once, if what was played has failed."""
    try:
        yield
    except BaseException:
        room.shutdown(now=True)
        raise
    room.shutdown()


def _work(pipe: Connection, around: Around, environ: dict[str, str]) -> None:
    os.environ.update({"OMP_NUM_THREADS": "1"}, **environ)  # ranks share the processors of this machine
    while True:
        try:
            function, arguments, place = pipe.recv()
        except EOFError:
            return
        os.environ.update(place)
        pipe.send(_play(around, function, arguments, place["RANK"]))
        for name in place:
            os.environ.pop(name, None)


def _play(around: Around, function: Callable[..., Any], arguments: Any, rank: str) -> Any:
    try:
        with around():
            return function(*arguments)
    except BaseException as error:  # noqa: BLE001 - carried to the test
        error.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
        return error


def example(script: str, *words: str) -> str:
    """What an example prints, on a rank of a crew: as a user starts it, but for its process, which is there already."""
    printed = io.StringIO()
    before, sys.argv = sys.argv, [script, *words]
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()


def losses_of(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"\bloss:? (\d+\.\d+)", printed)]


@contextmanager
def dedicated_server(role: str) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
    """A server of a job of two: what its workers are told, and, when it is over, what the server has counted.

    Workers of `role` "worker" only train; "joint" ones serve, too.
    """
    told: dict[str, Any] = {
        "LEGATO_CONDUCTOR": f"127.0.0.1:{free_port()}",
        "LEGATO_SERVERS": "1",
        "LEGATO_MIXED": str(int(role == "joint")),
        "LEGATO_ROLE": role,
        "LEGATO_SHARED_MEMORY": "0",
    }
    counters: dict[str, int] = {}

    def serve() -> None:
        settings = read_settings({**told, "WORLD_SIZE": "2", "LEGATO_HEARTBEAT_S": HEARTBEAT_S}, role=Role.SERVER)
        with Server(settings.native()) as server:
            server.wait(TIMEOUT_S)
            counters.update(server._session.engine.statistics())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield told, counters
    finally:
        thread.join(TIMEOUT_S)
