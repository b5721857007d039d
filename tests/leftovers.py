"""What the process of the tests holds open, so that a test can show that nothing is left behind."""

import gc
import multiprocessing
import time
from pathlib import Path

SETTLE_TIMEOUT_S = 30.0


def open_files_and_threads() -> set[str]:
    """By name, not by number: what an earlier test left to the collector may go at any time.

    A process that nobody joined, and that has ended, keeps its pipes until somebody asks for the children there are: a
    `DataLoader` gives up on a worker that takes longer than five seconds to end, as on a busy machine it may.
    """
    children = multiprocessing.active_children()
    gc.collect()
    threads = {f"thread {task.name}" for task in Path("/proc/self/task").iterdir()}
    files = {f"file {fd.name}: {_target(fd)}" for fd in Path("/proc/self/fd").iterdir()}
    return threads | files | {f"child {child.name}" for child in children}


def expect_nothing_beyond(before: set[str]) -> None:
    """Wait for it: a thread that has been joined can be seen for another moment."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while left := open_files_and_threads() - before:
        assert time.monotonic() < deadline, f"still open after {SETTLE_TIMEOUT_S} s: {sorted(left)}"
        time.sleep(0.001)


def _target(fd: Path) -> str:
    """The directory that lists the files is among them, and closed by the time it is read."""
    try:
        return str(fd.readlink())
    except FileNotFoundError:
        return "the listing"
