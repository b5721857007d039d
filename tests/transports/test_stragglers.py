"""Stragglers: who is named, for what, and how often."""

from dataclasses import replace

import pytest

from legato.transports.rendezvous.messages import Pace, Straggling
from legato.transports.rendezvous.stragglers import EVICTED_WINDOWS, QUIET_S, Cause, Eviction, Stragglers, slowest

ALIKE = Pace(
    step=3,
    step_s=0.1,
    input_s=0.002,
    compute_s=0.05,
    waited_s=0.048,
    link_bytes_per_s=100e6,
    slowest_peer=2,
    slowest_bytes_per_s=90e6,
)
COMPUTES = replace(ALIKE, compute_s=0.095, waited_s=0.003)
LOADS = replace(ALIKE, input_s=0.042, waited_s=0.008)
SENDS = replace(ALIKE, link_bytes_per_s=5e6, slowest_bytes_per_s=5e6)
TO_SERVER_3 = replace(ALIKE, slowest_peer=3, slowest_bytes_per_s=4e6)


def found(*paces: Pace) -> tuple[int, Cause] | None:
    straggler = slowest(dict(enumerate(paces)))
    return None if straggler is None else (straggler.member, straggler.cause)


@pytest.mark.parametrize(
    ("paces", "expected"),
    [
        ([ALIKE, ALIKE, ALIKE], None),
        ([ALIKE, COMPUTES, ALIKE], (1, Cause.COMPUTE)),
        ([ALIKE, COMPUTES], (1, Cause.COMPUTE)),
        ([ALIKE, ALIKE, LOADS], (2, Cause.INPUT)),
        ([SENDS, ALIKE, ALIKE], (0, Cause.LINK)),
        ([SENDS, COMPUTES, ALIKE], (1, Cause.COMPUTE)),
        ([TO_SERVER_3, TO_SERVER_3, ALIKE], (3, Cause.LINK)),
        ([TO_SERVER_3, ALIKE, ALIKE], None),
        # Between two hosts nobody can tell whose link it is.
        ([SENDS, ALIKE], None),
        # A tenth more is noise, and so is a multiple of next to nothing.
        ([ALIKE, replace(ALIKE, compute_s=0.055, waited_s=0.043), ALIKE], None),
        ([ALIKE, replace(ALIKE, input_s=0.008, waited_s=0.042), ALIKE], None),
        # Nobody waits for it.
        ([replace(ALIKE, waited_s=0.001), COMPUTES, replace(ALIKE, waited_s=0.001)], None),
        # Links are slow, and computing takes longer still.
        ([replace(pace, waited_s=0.01) for pace in (SENDS, ALIKE, ALIKE)], None),
        # Nothing leaves these machines.
        ([replace(ALIKE, link_bytes_per_s=0.0, slowest_peer=None)] * 3, None),
        ([ALIKE], None),
    ],
)
def test_who_is_slow_and_at_what(paces: list[Pace], expected: tuple[int, Cause] | None) -> None:
    assert found(*paces) == expected


class Job:
    """Windows of three ranks, one after the other."""

    def __init__(self, *, evicts: bool = False) -> None:
        self.stragglers = Stragglers("rank {}".format, evicts=evicts)
        self.step = 0

    def window(self, *paces: Pace, now_s: float = 0.0) -> list[Straggling | Eviction]:
        self.step += 3
        return [
            line
            for rank, pace in enumerate(paces)
            for line in self.stragglers.pace(rank, replace(pace, step=self.step), 3, now_s)
        ]


def test_a_straggler_is_named_when_two_windows_agree_and_then_no_more() -> None:
    job = Job()
    assert job.window(ALIKE, COMPUTES, ALIKE) == []
    assert job.window(ALIKE, ALIKE, ALIKE) == []
    assert job.window(ALIKE, COMPUTES, ALIKE) == []
    assert job.window(ALIKE, COMPUTES, ALIKE) == [
        Straggling(
            "rank 1 is the slowest: it spends 95 ms a step computing, and the others 50 ms; schedule(..., backups=1), "
            "or LEGATO_STRAGGLERS=evict in an elastic job, goes on without it"
        )
    ]
    assert [job.window(ALIKE, COMPUTES, ALIKE) for _ in range(5)] == [[]] * 5


def test_another_straggler_is_named_after_a_while() -> None:
    job = Job()
    for _ in range(2):
        job.window(ALIKE, COMPUTES, ALIKE)
    assert [job.window(SENDS, ALIKE, ALIKE, now_s=QUIET_S / 2) for _ in range(5)] == [[]] * 5
    [line] = job.window(SENDS, ALIKE, ALIKE, now_s=QUIET_S)
    assert isinstance(line, Straggling)
    assert line.text == (
        "rank 0 is the slowest: its link sends 5 MB/s, and those of the others 100 MB/s; look at its network"
    )


def test_one_that_has_recovered_is_named_again() -> None:
    job = Job()
    for _ in range(2):
        job.window(ALIKE, COMPUTES, ALIKE)
    for _ in range(2):
        job.window(ALIKE, ALIKE, ALIKE, now_s=QUIET_S)
    lines = [job.window(ALIKE, COMPUTES, ALIKE, now_s=QUIET_S) for _ in range(2)]
    assert [len(each) for each in lines] == [0, 1]


FAR_SLOWER = replace(ALIKE, compute_s=0.5, step_s=0.55, waited_s=0.003)
WAITING = replace(ALIKE, step_s=0.55, waited_s=0.45)


def test_who_is_far_slower_for_several_windows_is_evicted() -> None:
    job = Job(evicts=True)
    said = [job.window(WAITING, FAR_SLOWER, WAITING) for _ in range(EVICTED_WINDOWS)]
    assert [len(each) for each in said] == [0, 1, 0, 0, 1]
    [eviction] = said[-1]
    assert eviction == Eviction(
        1, "rank 1 is evicted, because the others wait for it: it spends 500 ms a step computing, and the others 50 ms"
    )


@pytest.mark.parametrize(
    ("evicts", "between"),
    [(False, FAR_SLOWER), (True, ALIKE), (True, COMPUTES)],
    ids=["nobody asked", "it recovers", "it is not far slower"],
)
def test_nobody_else_is(evicts: bool, between: Pace) -> None:
    job = Job(evicts=evicts)
    for number in range(3 * EVICTED_WINDOWS):
        second = between if number % EVICTED_WINDOWS == 0 else FAR_SLOWER
        assert not any(isinstance(each, Eviction) for each in job.window(WAITING, second, WAITING))


def test_windows_that_not_all_report_are_forgotten() -> None:
    job = Job()
    for _ in range(100):
        assert job.window(ALIKE, COMPUTES) == []
    assert len(job.stragglers._windows) <= 5
