"""What bench.joining makes of what rank 0 has told."""

from bench.joining import WORKERS, examine


def test_the_join_is_told_from_the_steps_around_it() -> None:
    sizes = [WORKERS, WORKERS - 1, WORKERS - 1, WORKERS - 1, WORKERS, WORKERS, WORKERS, WORKERS]
    at_s = [0.0, 1.0, 2.0, 3.0, 7.0, 8.5, 10.0, 11.5]
    lines = [(at_s, step, size) for step, (at_s, size) in enumerate(zip(at_s, sizes, strict=True))]
    found = examine(lines, [1.0, 1.0, 1.5], knocked_s=2.5)
    assert found == {
        "step_s": 1.0,
        "step_after_s": 1.5,
        "joining_steps": 3,
        "lost_s": 3.5,
        "slower": 1.167,
        "slower_than_after": 0.444,
        "longest_s": 4.0,
    }
