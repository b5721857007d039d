"""Parts: the unit that is started and finished."""

from enum import IntEnum
from typing import NamedTuple


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
