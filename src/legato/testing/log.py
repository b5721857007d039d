"""What is said in the log, for tests and benchmarks that ask for it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def said(logger_name: str, level: int = logging.INFO) -> Iterator[list[str]]:
    """The lines that this logger and those below it get meanwhile, from this level on."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger(logger_name), Lines(level)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
