"""A crew: one function at work on several hosts at once, its ranks meeting where they must and reporting when done."""

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Concatenate, ParamSpec, TypeVar

from bench.testbed.testbed import Testbed

_P = ParamSpec("_P")
_R = TypeVar("_R")

SILENCE_S = 600.0
"""Ranks that say nothing for so long are given up; a whole grid may take longer."""
_MEET, _TELL, _DONE, _FAILED = "meet", "tell", "done", "failed"

KEY = "a key for namespaces that nobody else can reach"
"""Of every job on a testbed: its hosts talk beyond loopback."""

Hear = Callable[[int, Any], None]
"""What is done with what a rank tells: (rank, what)."""


def torchrun_environment(rank: int, size: int, address: str, port: int, *, on_one_host: bool = False) -> dict[str, str]:
    """What torchrun would set for a rank; each is on a host of its own, unless all are on one."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank) if on_one_host else "0",
        "LOCAL_WORLD_SIZE": str(size) if on_one_host else "1",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


class CrewError(RuntimeError):
    """A rank failed, or not all were done in time."""


class Station:
    """Where one rank of a crew stands."""

    def __init__(self, rank: int, line: "Connection[Any, Any]") -> None:
        self.rank = rank
        self._line = line

    def meet(self) -> float:
        """Wait for all ranks; the same instant of the monotonic clock, which all hosts share, on each of them."""
        self._line.send((_MEET, None))
        instant: float = self._line.recv()
        return instant

    def tell(self, what: object) -> None:
        """Tell whoever runs the crew how it goes."""
        self._line.send((_TELL, what))


def run(
    testbed: Testbed,
    hosts: Sequence[int],
    work: Callable[Concatenate[Station, _P], _R],
    /,
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> list[_R]:
    """What `work(station, ...)` returned on each of `hosts`, by rank; a failure of one rank ends them all."""
    return follow(testbed, hosts, lambda _rank, _what: None, work, *args, **kwargs)


def follow(
    testbed: Testbed,
    hosts: Sequence[int],
    hear: Hear,
    work: Callable[Concatenate[Station, _P], _R],
    /,
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> list[_R]:
    """The same, and hear what the ranks tell on the way."""
    lines = []
    processes = []
    try:
        for rank, host in enumerate(hosts):
            ours, theirs = Pipe()
            lines.append(ours)
            processes.append(testbed.spawn(host, _man_station, rank, theirs, work, args, kwargs))
            theirs.close()
        return _conduct(lines, hear)
    finally:
        for line in lines:
            line.close()
        for process in processes:
            testbed.reap(process)


def _conduct(lines: Sequence["Connection[Any, Any]"], hear: Hear) -> list[Any]:
    ranks = {line: rank for rank, line in enumerate(lines)}
    results: dict[int, Any] = {}
    meeting: set[int] = set()
    while len(results) < len(lines):
        open_lines = [line for line, rank in ranks.items() if rank not in results]
        ready = wait(open_lines, SILENCE_S)
        if not ready:
            silent = sorted(set(ranks.values()) - set(results))
            raise CrewError(f"ranks {silent} have said nothing for {SILENCE_S:g} s")
        for line in ready:
            assert isinstance(line, Connection)
            rank = ranks[line]
            kind, value = _receive(line, rank)
            if kind == _FAILED:
                raise CrewError(f"rank {rank} failed:\n{value}")
            if kind == _DONE:
                results[rank] = value
            elif kind == _TELL:
                hear(rank, value)
            else:
                meeting.add(rank)
        if len(meeting) == len(lines):
            instant = time.monotonic()
            for line in lines:
                line.send(instant)
            meeting.clear()
    return [results[rank] for rank in range(len(lines))]


def _receive(line: "Connection[Any, Any]", rank: int) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = line.recv()
    except EOFError:
        raise CrewError(f"rank {rank} died without a word") from None
    return message


def _man_station(
    rank: int, line: "Connection[Any, Any]", work: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    try:
        message = (_DONE, work(Station(rank, line), *args, **kwargs))
    except BaseException:  # noqa: BLE001 (told to whoever runs the crew)
        message = (_FAILED, traceback.format_exc())
    with suppress(BrokenPipeError):  # the crew is over already, because another rank failed
        line.send(message)
