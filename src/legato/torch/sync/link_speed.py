"""How fast this rank's link is, as far as the start of a job shows it: rank 0 sends its weights to everybody."""

import time
from types import TracebackType
from typing import Self

from legato.transports.native.group import NativeGroup

LEAST_S = 0.05
"""A shorter time says more of the processors than of the link."""


class Speed:
    """Around something that keeps the link of a native group busy."""

    def __init__(self, group: object) -> None:
        self._engine = group.session.engine if isinstance(group, NativeGroup) else None
        self._begin = (0.0, 0)
        self.bytes_per_s: float | None = None
        """None where nothing can be said, as of a group that is not ours, or that has no link to measure."""

    def __enter__(self) -> Self:
        self._begin = self._now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (begin_s, sent_before), (end_s, sent) = self._begin, self._now()
        if end_s - begin_s >= LEAST_S and sent > sent_before:
            self.bytes_per_s = (sent - sent_before) / (end_s - begin_s)

    def _now(self) -> tuple[float, int]:
        """Seconds, and the bytes that have left by sockets."""
        sent = 0 if self._engine is None else self._engine.statistics()["bytes_sent"]
        return time.monotonic(), sent
