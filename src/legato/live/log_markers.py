"""Faults, as the log tells them: every warning of legato's on rank 0."""

import logging
from collections.abc import Callable


class LogMarkers(logging.Handler):
    """Hears legato's warnings from construction to `close`, and changes nothing about where they are shown."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._mark = mark
        self._logger = logging.getLogger("legato")
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._mark(record.getMessage().partition("\n")[0])
        # A logger without handlers shows warnings on stderr, and with this one it has a handler.
        is_alone = self._logger.handlers == [self] and not (self._logger.propagate and logging.root.handlers)
        if is_alone and logging.lastResort is not None:
            logging.lastResort.handle(record)

    def close(self) -> None:
        self._logger.removeHandler(self)
        super().close()
