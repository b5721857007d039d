"""Lines about connections that were dropped: a few, then their number. Whoever can connect can make them."""

import logging
import threading
import time

_NUM_LINES = 8
_QUIET_S = 10.0
"""So many drops are logged one by one in this time; the others are counted."""


class DropLog:
    """Of one listener; from any thread."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._since_s = float("-inf")
        self._num_drops = 0

    def add(self, peer: str, reason: object) -> None:
        """Say that a connection was dropped, and why; or count it."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._since_s >= _QUIET_S:
                self._say_rest()
                self._since_s = now_s
            self._num_drops += 1
            number = self._num_drops
        if number <= _NUM_LINES:
            last = " (others in the next seconds are only counted)" if number == _NUM_LINES else ""
            self._logger.warning("dropped %s: %s%s", peer, reason, last)

    def close(self) -> None:
        """Say how many were only counted."""
        with self._lock:
            self._say_rest()

    def _say_rest(self) -> None:
        if self._num_drops > _NUM_LINES:
            self._logger.warning("dropped %d more connections", self._num_drops - _NUM_LINES)
        self._num_drops = 0
