"""What the process of the tests holds open, so that a test can show that nothing is left behind."""

import gc
import multiprocessing
import sys
import threading
import time
from pathlib import Path

SETTLE_TIMEOUT_S = 30.0
NOT_OURS = {"jemalloc_bg_thd"}
"""Threads by which libraries that others import (pyarrow) tidy their memory: they come, also after a fork, and stay."""


def open_files_and_threads() -> set[str]:
    """By name, not by number: what an earlier test left to the collector may go at any time.

    A process that nobody joined, and that has ended, keeps its pipes until somebody asks for the children there are: a
    `DataLoader` gives up on a worker that takes longer than five seconds to end, as on a busy machine it may.
    """
    children = multiprocessing.active_children()
    gc.collect()
    threads = {f"thread {task.name}" for task in Path("/proc/self/task").iterdir() if _name(task) not in NOT_OURS}
    files = {f"file {fd.name}: {_target(fd)}" for fd in Path("/proc/self/fd").iterdir()}
    return threads | files | {f"child {child.name}" for child in children}


def expect_nothing_beyond(before: set[str]) -> None:
    """Wait for it: a thread that has been joined can be seen for another moment."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while left := open_files_and_threads() - before:
        assert time.monotonic() < deadline, f"still open after {SETTLE_TIMEOUT_S} s: {sorted(left)}; {_threads()}"
        time.sleep(0.001)


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return "an ended one"


def _threads() -> str:
    """What they are called, and where Python's are: a number alone says nothing of whose it is."""
    frames = sys._current_frames()
    python = {thread.native_id: thread for thread in threading.enumerate()}
    words = []
    for task in Path("/proc/self/task").iterdir():
        thread = python.get(int(task.name))
        words.append(f"thread {task.name} is {_name(task)!r}")
        if thread is not None and thread.ident in frames:
            frame = frames[thread.ident]
            words[-1] += f", Python's {thread.name!r} in {frame.f_code.co_qualname} ({frame.f_code.co_filename})"
    return "; ".join(words)


def _target(fd: Path) -> str:
    """The directory that lists the files is among them, and closed by the time it is read."""
    try:
        return str(fd.readlink())
    except FileNotFoundError:
        return "the listing"
