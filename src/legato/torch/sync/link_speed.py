"""How fast this rank's link is, as far as the start of a job shows it: rank 0 sends its weights to everybody."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

LEAST_S = 0.05
"""A shorter time says more of the processors than of the link."""


class LinkSpeed:
    """Around something that keeps a link busy."""

    def __init__(self, bytes_sent: Callable[[], int | None]) -> None:
        self._bytes_sent = bytes_sent
        self._begin: tuple[float, int | None] = (0.0, None)
        self.bytes_per_s: float | None = None
        """None where nothing can be said, because nobody counts or nothing was sent."""

    def __enter__(self) -> Self:
        self._begin = time.monotonic(), self._bytes_sent()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begin_s, before = self._begin
        elapsed_s, sent = time.monotonic() - begin_s, self._bytes_sent()
        if before is not None and sent is not None and elapsed_s >= LEAST_S and sent > before:
            self.bytes_per_s = (sent - before) / elapsed_s
