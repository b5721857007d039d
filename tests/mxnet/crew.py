"""Processes that stay, each with MXNet loaded, and play the ranks of one small job after another."""

import functools
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from legato.testing.ports import free_port

_SPAWN = multiprocessing.get_context("spawn")
TIMEOUT_S = 100


class Crew:
    """`run` calls a function of a test module on every rank, and gathers what it returns."""

    def __init__(self, size: int) -> None:
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, **environ: str) -> list[Any]:
        """What the function returned on each rank; the first error of any rank otherwise."""
        outcomes = self.outcomes(function, *arguments, **environ)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def outcomes(self, function: Callable[..., Any], *arguments: Any, **environ: str) -> list[Any]:
        """What each rank returned or raised; EOFError, if it died."""
        size, port = len(self._pipes), free_port()
        for rank, pipe in enumerate(self._pipes):
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "LEGATO_HEARTBEAT_S": "30",  # processes that load MXNet can keep two cores busy for long
                **environ,
            }
            pipe.send((function, arguments, place))
        outcomes = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(TIMEOUT_S), f"rank {rank} does not come back"
            try:
                outcomes.append(pipe.recv())
            except EOFError as died:
                outcomes.append(died)
        return outcomes

    def close(self) -> list[int | None]:
        """How each process ended."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(TIMEOUT_S)
        return [process.exitcode for process in self._processes]


@functools.cache
def shared_crew() -> Crew:
    """Two processes for all tests of one run."""
    return Crew(2)


def _work(pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    while True:
        try:
            function, arguments, place = pipe.recv()
        except EOFError:
            return
        os.environ.update(place)
        pipe.send(_play(function, arguments, place["RANK"]))
        for name in place:
            del os.environ[name]


def _play(function: Callable[..., Any], arguments: Any, rank: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet is older than the numpy and scipy that it runs on
        import mxnet as mx

        import legato.mxnet as bps

        mx.random.seed(0)
        try:
            outcome = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - carried to the test
            error.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
            outcome = error
        bps.shutdown(now=isinstance(outcome, BaseException))
    return outcome
