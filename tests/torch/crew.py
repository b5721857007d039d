"""A crew: processes that stay, each with torch loaded, and play the ranks of one small job after another."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

import legato.torch as lg
from legato.testing.ports import free_port

_SPAWN = multiprocessing.get_context("spawn")
TIMEOUT_S = 60


class Crew:
    """`run` calls a function of a test module on every rank, inside a job of that size, and gathers what it returns."""

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
        for pipe in self._pipes:
            pipe.recv()  # it has loaded torch, which on a busy machine can take longer than a run may

    def run(self, function: Callable[..., Any], *arguments: Any, size: int = 2) -> list[Any]:
        """What the function returned on each rank; the first error of any rank otherwise."""
        outcomes = self.outcomes(function, *arguments, size=size)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def outcomes(self, function: Callable[..., Any], *arguments: Any, size: int = 2) -> list[Any]:
        """What each rank returned or raised."""
        port = free_port()
        for rank, pipe in enumerate(self._pipes[:size]):
            pipe.send((function, arguments, rank, size, port))
        outcomes = []
        for rank, pipe in enumerate(self._pipes[:size]):
            assert pipe.poll(TIMEOUT_S), f"rank {rank} does not come back"
            outcomes.append(pipe.recv())
        return outcomes

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(TIMEOUT_S)


def _work(pipe: Connection) -> None:
    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        try:
            function, arguments, rank, size, port = pipe.recv()
        except EOFError:
            return
        pipe.send(_play(function, arguments, rank, size, port))


def _play(function: Callable[..., Any], arguments: Any, rank: int, size: int, port: int) -> Any:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        LEGATO_HEARTBEAT_S="30",  # four processes that load torch can keep two cores busy for longer than 5 s
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    try:
        outcome = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - carried to the test
        error.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
        outcome = error
    lg.shutdown(now=isinstance(outcome, BaseException))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return outcome
