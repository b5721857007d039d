"""Parts: the unit that is started and finished, and how bytes are cut into them."""

from enum import IntEnum
from typing import NamedTuple

from legato.errors import InputError


class Stage(IntEnum):
    """What an operation does with a part. The values are the order in which one bucket goes through them."""

    SYNC = 0
    """Sum it and bring the sum back: a push and its pull, or an all-reduce."""
    REDUCE_SCATTER = 1
    """The first half: sum it where it is owned (a push)."""
    ALL_GATHER = 2
    """The second half: bring the sum back (a pull)."""


class Part(NamedTuple):
    """A contiguous byte range of a bucket; a bucket of one tensor is that tensor's task."""

    step: int
    bucket: int
    stage: Stage
    offset: int
    length: int


def split(num_bytes: int, partition_bytes: int | None, item_bytes: int = 1) -> tuple[tuple[int, int], ...]:
    """Cut a byte range into (offset, length) pieces of at most `partition_bytes`, at element boundaries.

    The shape plays no part, so a tensor of one row splits like any other. A partition smaller than an element gives
    one element per part; no partition, or nothing to cut, gives one part.

        num_bytes = 10, partition_bytes = 4:   |0 1 2 3|4 5 6 7|8 9|
    """
    if partition_bytes is not None and partition_bytes < 1:
        raise InputError(f"partition_bytes={partition_bytes} must be at least 1")
    if partition_bytes is None or num_bytes <= partition_bytes:
        return ((0, num_bytes),)
    size = max(partition_bytes // item_bytes, 1) * item_bytes
    return tuple((offset, min(size, num_bytes - offset)) for offset in range(0, num_bytes, size))
