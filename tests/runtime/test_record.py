"""The record: ready times of the last whole step, and the rate of the links while they were busy."""

from legato.core import Finished, Part, Ready, Stage, Start, Task
from legato.runtime import Record


def test_ready_times_are_those_of_the_last_whole_step() -> None:
    record = Record(2)
    assert record.ready_s() is None
    record(10.0, Ready(Task(0, 1)))
    record(12.0, Ready(Task(0, 0)))
    record(20.0, Ready(Task(1, 0)))
    assert record.ready_s() == (2.0, 0.0)
    record(20.5, Ready(Task(1, 1)))
    assert record.ready_s() == (0.0, 0.5)
    record.forget()
    assert record.ready_s() is None


def test_overlapping_operations_count_their_time_once_and_their_bytes_by_half() -> None:
    """in flight   ├──── 4 B scattered ────┤
    second      1   2        3           4      6 ── 8 B summed ── 9
                    ├─ 4 B gathered ─┤
    """
    record = Record(1)
    scattered, gathered = Part(0, 0, Stage.REDUCE_SCATTER, 0, 4), Part(0, 1, Stage.ALL_GATHER, 0, 4)
    summed = Part(0, 2, Stage.SYNC, 0, 8)
    record(1.0, Start(scattered))
    record(2.0, Start(gathered))
    record(3.0, Finished(gathered))
    record(4.0, Finished(scattered))
    record(6.0, Start(summed))
    record(9.0, Finished(summed))
    assert record.busy_s == 6.0
    assert record.num_bytes == 4 + 4 + 16
