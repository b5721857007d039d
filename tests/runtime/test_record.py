"""The record: when gradients appear in a step, and the rate of the links while operations follow one another."""

from legato.core import Finished, Part, Ready, Stage, Start, Task
from legato.runtime import Record


def test_ready_times_are_medians_of_whole_steps() -> None:
    record = Record(2)
    assert record.ready_s() is None
    for step, begin_s, pause_s in ((0, 10.0, 2.0), (1, 20.0, 9.0), (2, 30.0, 3.0)):
        record(begin_s, Ready(Task(step, 1)))
        record(begin_s + pause_s, Ready(Task(step, 0)))
    record(40.0, Ready(Task(3, 0)))
    assert record.ready_s() == (3.0, 0.0)
    record.forget()
    assert record.ready_s() is None


def test_only_what_follows_another_operation_tells_of_the_links() -> None:
    """in flight   ├── 4 B scattered ──┤           ├── 8 B summed ──┤
                         ├─ 4 B gathered ─┤
    second      1        2          3     4         6                9
    """
    record = Record(1)
    assert record.bytes_per_s is None
    scattered, gathered = Part(0, 0, Stage.REDUCE_SCATTER, 0, 4), Part(0, 1, Stage.ALL_GATHER, 0, 4)
    summed = Part(0, 2, Stage.SYNC, 0, 8)
    record(1.0, Start(scattered))
    record(2.0, Start(gathered))
    record(3.0, Finished(scattered))
    record(4.0, Finished(gathered))
    record(6.0, Start(summed))
    assert record.bytes_per_s == 4 / 1.0
    record(7.0, Start(scattered))
    record(9.0, Finished(scattered))
    record(11.0, Finished(summed))
    assert record.bytes_per_s == (4 + 16) / 3.0
