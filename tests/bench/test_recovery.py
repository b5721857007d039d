"""What a killed worker costs: how it is counted, and one kill under each launcher."""

from random import Random

import pytest

from bench.recovery import SYSTEMS, WORKERS, Line, check_weights, examine, run


def lines(*steps: tuple[float, int, int, int]) -> list[Line]:
    return [Line(at_s, step, WORKERS, turn, digest=step, pid=pid) for at_s, step, pid, turn in steps]


BEFORE = [*((1.0, 7, pid, 0) for pid in range(4)), *((2.0, 8, pid, 0) for pid in range(3))]


def test_survivors_go_on_and_one_comes_back() -> None:
    """Worker 3 is killed at 2.5 s; worker 2 completes step 9 last, and the four of them step 20 first."""
    after = [*((2.6, 9, pid, 0) for pid in range(2)), (2.7, 9, 2, 0), *((8.0, 20, pid, 0) for pid in (0, 1, 2, 9))]
    kill = examine(lines(*BEFORE, *after), 2.5, WORKERS)
    assert [kill.recovery_s, kill.whole_s, kill.lost] == pytest.approx([0.2, 5.5, 0])


def test_steps_that_are_taken_again_are_lost() -> None:
    """All are started again from step 6: 7 and 8 come again, and training goes on with 9."""
    after = [(9.0 + step / 10, step, pid, 1) for step in (7, 8, 9) for pid in range(10, 14)]
    kill = examine(lines(*BEFORE, *after), 2.5, WORKERS)
    assert [kill.recovery_s, kill.whole_s, kill.lost] == pytest.approx([7.4, 7.4, 2])


def test_weights_that_differ_are_seen() -> None:
    with pytest.raises(AssertionError, match="weights differ after step 7"):
        check_weights([*lines(*BEFORE), Line(3.0, 7, WORKERS, 0, digest=1, pid=5)])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("system", SYSTEMS)
def test_one_kill(system: str) -> None:
    """Of two workers: each loads torch, for seconds."""
    [kill], _ = run(system, 1, Random(1), workers=2, every_s=0.5)
    assert 0.0 < kill.recovery_s <= kill.whole_s
    if system != "torchrun":
        assert kill.lost == 0
    else:
        assert kill.recovery_s == kill.whole_s
        assert kill.lost <= 1, "there is a checkpoint of every step but, at times, the last"
