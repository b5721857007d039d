"""Signals that end a process in order."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_signals(act: Callable[[int], None]) -> Iterator[None]:
    """Do this at SIGTERM and SIGINT, instead of ending at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        act(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End as a process does that the signal kills, 143 or 130, but with every connection closed in order."""

    def end(number: int) -> None:
        raise SystemExit(128 + number)

    with on_signals(end):
        yield
