"""Subgroups, notes and Adasum: what Horovod's process sets, join and Adasum stand on."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from legato.core.shards import Deployment
from legato.errors import ClosedError, InputError, MismatchError
from legato.testing.native_job import job_configs, run_job
from legato.transports.native.group import NativeGroup
from legato.transports.native.subgroup import open_subgroup
from legato.transports.rendezvous.join import JoinConfig


def on_each(num_workers: int, body: Callable[[NativeGroup], Any], **deployment: Any) -> list[Any]:
    return run_job(job_configs(Deployment(num_workers=num_workers, **deployment)), body)


@pytest.mark.parametrize("deployment", [{}, {"num_servers": 1, "workers_serve": False}], ids=["joint", "servers"])
def test_two_subgroups_at_once(deployment: dict[str, Any]) -> None:
    def body(group: NativeGroup) -> list[float]:
        even, odd = open_subgroup(group, "even", [0, 2]), open_subgroup(group, "odd", [1, 3])
        mine, other = (odd, even) if group.rank % 2 else (even, odd)
        assert other is None
        assert mine is not None
        assert (mine.rank, mine.size) == (group.rank // 2, 2)
        values = np.full(3, group.rank + 1.0)
        under_way = group.push_pull_async("sum", values.copy())  # the same name, at the same time, among other ranks
        total = mine.push_pull("sum", values)
        assert under_way.wait()[0] == 10
        return [float(each) for each in total]

    assert on_each(4, body, **deployment) == [[4] * 3, [6] * 3, [4] * 3, [6] * 3]


def test_over_connections_with_a_key() -> None:
    """As between hosts: the subgroup's conductor takes the job's key, and nothing is shared."""
    member = {"shared_memory": False, "join": JoinConfig(key=b"0123456789abcdef")}

    def body(group: NativeGroup) -> float:
        pair = open_subgroup(group, "pair", [0, 2])
        return 0.0 if pair is None else float(pair.push_pull("sum", np.full(300_000, group.rank + 1.0)).sum())

    assert run_job(job_configs(Deployment(num_workers=3), **member), body) == [1_200_000, 0, 1_200_000]


def test_the_others_go_on_without_a_word() -> None:
    """A subgroup asks nothing of ranks that are not in it, not even that they are alive to it."""

    def body(group: NativeGroup) -> int:
        pair = open_subgroup(group, "pair", [0, 1])
        if pair is None:
            return 0
        for _ in range(3):
            pair.barrier()
        return int(pair.push_pull("sum", np.ones(1, np.int16))[0])

    assert on_each(3, body) == [2, 2, 0]


def test_ends_with_its_parent_and_alone_before_it() -> None:
    def body(group: NativeGroup) -> None:
        first, second = open_subgroup(group, "first", [0, 1]), open_subgroup(group, "second", [0, 1])
        assert first is not None
        assert second is not None
        first.close()
        with pytest.raises(ClosedError):
            first.push_pull("x", np.ones(1))
        second.push_pull("x", np.ones(1))
        group.push_pull("x", np.ones(1))

    on_each(2, body)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("legato-conductor")]


def test_of_one_and_of_nobody() -> None:
    def body(group: NativeGroup) -> None:
        assert open_subgroup(group, "one", [1]) is None, "there is nobody to talk to"
        for wrong in ([], [0, 0], [1, 0], [-1, 0], [0, 2]):
            with pytest.raises(InputError, match="accepted are different ranks from 0 to 1"):
                open_subgroup(group, "wrong", wrong)

    on_each(2, body)


def test_ranks_that_mean_different_subgroups() -> None:
    def body(group: NativeGroup) -> None:
        with pytest.raises(MismatchError, match=r"rank 0 wants a subgroup of ranks \[0, 1\], rank 2 one of \[0, 2\]"):
            open_subgroup(group, "pair", [0, 2] if group.rank == 2 else [0, 1])

    on_each(3, body)


def test_notes_reach_everybody_in_one_order() -> None:
    def body(group: NativeGroup) -> list[tuple[int, str]]:
        heard: list[tuple[int, str]] = []
        complete = threading.Event()

        def hear(rank: int, text: str) -> None:
            heard.append((rank, text))
            if len(heard) == 30:
                complete.set()

        member = group.session.member
        for place in range(5):
            member.note(f"{place} before anybody listens")
        member.hear_notes(hear)
        for place in range(5):
            member.note(f"{place} after that")
        assert complete.wait(30)
        return heard

    first, *others = on_each(3, body)
    assert all(other == first for other in others)
    assert [text for rank, text in first if rank == 1] == [
        *(f"{place} before anybody listens" for place in range(5)),
        *(f"{place} after that" for place in range(5)),
    ]


# ---- Adasum ----


def combined(vectors: list[np.ndarray[Any, np.dtype[Any]]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The definition, on whole vectors: neighbours first, then pairs of pairs."""
    if len(vectors) == 1:
        return vectors[0]
    pairs = []
    for a, b in zip(vectors[::2], vectors[1::2], strict=True):
        pairs.append((1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b)
    return combined(pairs)


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize("length", [1, 3, 5, 1000])
def test_adasum_is_its_definition(num_workers: int, length: int) -> None:
    vectors = [np.random.default_rng(rank).normal(size=length) for rank in range(num_workers)]
    results = on_each(num_workers, lambda group: group.adasum("a", vectors[group.rank]))
    for result in results:
        np.testing.assert_allclose(result, combined(vectors), rtol=1e-12)
        np.testing.assert_array_equal(result, results[0])


def test_adasum_of_equal_of_orthogonal_and_of_no_vectors() -> None:
    def body(group: NativeGroup) -> None:
        same = np.array([1, 2, 3], np.float32)
        np.testing.assert_array_equal(group.adasum("same", same), same)
        own = np.eye(2, dtype=np.float32)[group.rank]
        np.testing.assert_array_equal(group.adasum("orthogonal", own), [1, 1])
        for _ in range(2):
            np.testing.assert_array_equal(group.adasum("one is zero", same * group.rank), same)
        np.testing.assert_array_equal(group.adasum("all are zero", same * 0), same * 0)

    on_each(2, body)
