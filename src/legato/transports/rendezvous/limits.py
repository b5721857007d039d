"""Limits: what the system says when a process may not open more files, in words that help."""

import contextlib
import errno
import resource
from collections.abc import Iterator

from legato.errors import LegatoError, LimitError


def check_files(error: OSError) -> None:
    """Raise a LimitError where this process, or its machine, has no descriptor left."""
    if error.errno == errno.EMFILE:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise LimitError(
            f"this process may open {soft} files, which is not enough to take part in the job; raise the limit "
            "(`ulimit -n 4096` before it starts, `--ulimit nofile=4096` for a container) or close files"
        ) from error
    if error.errno == errno.ENFILE:
        raise LimitError(
            "this machine has no room for more open files; raise it (`sysctl fs.file-max`) or end what holds them"
        ) from error


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Have limits that are met in here named."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, LegatoError):
            check_files(error)
        raise
