"""Who tells whom what, when ranks run out of data: every note, on members that share one memory."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from legato.errors import DeadlineError, JobError, ProtocolError
from legato.torch.compat.joined import Call, JoinedRanks
from legato.transports.declaration import Declaration
from legato.transports.native.group import NativeGroup

SUM = Call("allreduce", "loss", (2,), ("float32", "sum"), "allreduce/loss", 1)
ROWS = Call("allgather", None, (3,), ("float32",), "allgather/noname#0", 1)
NUMBERS_OF_ROWS = Declaration(name="legato/rows/allgather/allgather/noname#0", shape=(2, 1), dtype="int64")


class Member:
    """One member's end of the notes: all hear each at once, in one order."""

    def __init__(self, rank: int, everybody: "list[Member]") -> None:
        self.rank, self._everybody = rank, everybody
        self.error: JobError | None = None
        self.said: list[str] = []
        self.absence: Callable[[Declaration, int], JobError | None] = lambda _tensor, _step: None
        self.hear: Callable[[int, str], None] = lambda _rank, _text: None
        everybody.append(self)

    @property
    def session(self) -> Any:
        return self

    @property
    def member(self) -> "Member":
        return self

    @property
    def size(self) -> int:
        return len(self._everybody)

    def also_absent(self, absence: Callable[[Declaration, int], JobError | None]) -> None:
        self.absence = absence

    def hear_notes(self, hear: Callable[[int, str], None]) -> None:
        self.hear = hear

    def note(self, text: str) -> None:
        self.said.append(text)
        for each in self._everybody:
            each.hear(self.rank, text)


def job(size: int) -> tuple[list[Member], list[JoinedRanks]]:
    members: list[Member] = []
    for rank in range(size):
        Member(rank, members)
    return members, [JoinedRanks(cast("NativeGroup", member)) for member in members]


def answered(ranks: JoinedRanks) -> tuple[list[Call], int]:
    """What a rank that has joined is told until all have, and who was the last."""
    calls: list[Call] = []
    return calls, ranks.answer_all(calls.append, lambda: None, None)


def test_nobody_is_told_while_nobody_has_joined() -> None:
    members, ranks = job(3)
    for each in ranks:
        each.started(SUM)
        each.over(SUM.known)
    assert [member.said for member in members] == [[], [], []]


def test_the_lowest_that_goes_on_tells_what_is_under_way_and_what_it_starts() -> None:
    members, ranks = job(3)
    ranks[1].started(SUM)
    ranks[2].started(SUM)
    ranks[0].enter(1)
    ranks[1].started(ROWS)
    ranks[2].started(ROWS)
    assert [len(member.said) for member in members] == [1, 2, 0]
    ranks[1].over(SUM.known)
    ranks[1].over(ROWS.known)
    ranks[1].enter(1)  # now rank 2 is the lowest, and nobody else knows what it still has under way
    assert [len(member.said) for member in members] == [1, 3, 2]
    ranks[2].enter(1)
    assert answered(ranks[0]) == ([SUM, ROWS, SUM, ROWS], 2)
    assert answered(ranks[1]) == ([SUM, ROWS], 2)
    assert answered(ranks[2]) == ([], 2)


def test_all_begin_anew_after_the_last() -> None:
    members, ranks = job(2)
    for last in (1, 0):
        ranks[1 - last].enter(1)
        ranks[last].started(SUM)
        ranks[last].over(SUM.known)
        ranks[last].enter(1)
        assert answered(ranks[1 - last]) == ([SUM], last)
        assert answered(ranks[last]) == ([], last)
    ranks[0].started(SUM)
    assert [len(member.said) for member in members] == [3, 3]


def test_only_sums_go_on_without_those_who_have_joined() -> None:
    members, ranks = job(2)
    ranks[1].started(ROWS)
    assert members[1].absence(NUMBERS_OF_ROWS, 0) is None, "nobody has joined"
    ranks[0].enter(1)
    error = members[1].absence(NUMBERS_OF_ROWS, 4)
    assert error is not None
    assert (error.rank, error.step) == (0, 4)
    assert "rank 0 joined" in str(error)
    ranks[1].started(SUM)
    total = Declaration(name=SUM.known, shape=(2,), dtype="float32")
    assert members[1].absence(total, 0) is None
    ranks[1].over(ROWS.known)
    assert members[1].absence(NUMBERS_OF_ROWS, 4) is None, "it is not this rank's any more"


def test_what_a_rank_had_begun_before_it_joined_is_not_missing() -> None:
    members, ranks = job(2)
    ranks[0].started(ROWS)
    ranks[0].enter(1)
    ranks[1].started(ROWS)
    assert members[1].absence(NUMBERS_OF_ROWS, 0) is None
    ranks[1].started(Call(ROWS.kind, ROWS.name, ROWS.shape, ROWS.words, ROWS.known, 2))
    assert members[1].absence(NUMBERS_OF_ROWS, 1) is not None


def test_waiting_ends() -> None:
    members, ranks = job(3)
    ranks[1].enter(1)
    with pytest.raises(DeadlineError, match="ranks 0, 2 have neither joined nor started anything within 0 s"):
        ranks[1].answer_all(lambda _: None, lambda: None, 0.0)
    members[1].error = JobError("rank 2 is gone")
    with pytest.raises(JobError, match="rank 2 is gone"):
        ranks[1].answer_all(lambda _: None, lambda: None, None)
    with pytest.raises(ProtocolError, match="rank 2 sent a note that cannot be read"):
        members[0].hear(2, '{"asked": 3, "begun": []}')
