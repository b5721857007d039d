"""Ranks as threads: the same function on every rank, errors carried back to the caller."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_ranks(size: int, body: Callable[[int], T], timeout_s: float = 30.0) -> list[T]:
    """`body(rank)` on every rank at once; its results by rank, or the error of the lowest rank that has one."""
    futures = start_ranks(size, body)
    deadline_s = time.monotonic() + timeout_s
    errors: list[BaseException] = []
    for future in futures:
        with contextlib.suppress(TimeoutError):
            error = future.exception(max(deadline_s - time.monotonic(), 0.0))
            if error is not None:
                errors.append(error)
    if errors:
        raise errors[0]
    stuck = [rank for rank, future in enumerate(futures) if not future.done()]
    if stuck:
        raise TimeoutError(f"ranks {stuck} are still running after {timeout_s:g} s")
    return [future.result() for future in futures]


def error_of(action: Callable[[], object], kind: type[Exception]) -> str:
    """What the error says that an action must raise."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def start_ranks(size: int, body: Callable[[int], T]) -> "list[Future[T]]":
    """The same, without waiting: for tests that look at ranks one by one."""
    futures: list[Future[T]] = [Future() for _ in range(size)]

    def run(rank: int) -> None:
        try:
            futures[rank].set_result(body(rank))
        except BaseException as error:  # noqa: BLE001 - carried to the caller
            futures[rank].set_exception(error)

    for rank in range(size):
        threading.Thread(target=run, args=(rank,), name=f"rank-{rank}", daemon=True).start()
    return futures
