"""ElasticSampler: over any changes of membership every sample is seen, and none twice but for padding."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import legato.torch as lg
from legato.job import Job
from legato.settings import read_settings
from legato.torch import api


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """As the rank of a job that talks to nobody."""
    api.begin(Job(read_settings({}, rank=rank, num_workers=size)))
    try:
        yield
    finally:
        lg.shutdown(now=True)


@dataclass(frozen=True)
class Change:
    """After some batches, ranks are lost in the middle of one more, and others join."""

    num_batches: int
    lost: frozenset[int]
    num_joined: int


CHANGES = st.lists(
    st.builds(Change, st.integers(0, 4), st.frozensets(st.integers(0, 4), max_size=3), st.integers(0, 2)), max_size=5
)


class Samplers:
    """The samplers of all ranks of a job, and what has become of its samples."""

    def __init__(self, num_samples: int, size: int, batch_size: int) -> None:
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.samplers: list[lg.ElasticSampler] = []
        for rank in range(size):
            with as_rank(rank, size):
                self.samplers.append(lg.ElasticSampler(range(num_samples), seed=3))
        self.seen: Counter[int] = Counter()
        self.num_padded = 0

    def train(self, change: Change | None) -> bool:
        """Until the change, or to the end of what is left: whether that has been reached."""
        shares = [list(sampler) for sampler in self.samplers]
        assert len({len(share) for share in shares}) == 1
        assert len(shares[0]) == len(self.samplers[0])
        num_batches = -(-len(shares[0]) // self.batch_size)
        stop = num_batches if change is None else min(change.num_batches, num_batches)
        for batch in range(stop):
            self._step(shares, batch, frozenset())
        if change is not None and change.lost and stop < num_batches:
            self._step(shares, stop, change.lost)
            stop += 1
        if stop == num_batches:
            sampler = self.samplers[0]
            self.num_padded += sampler.total_size - len(sampler.remaining_indices)
        return stop == num_batches

    def _step(self, shares: list[list[int]], batch: int, lost: frozenset[int]) -> None:
        for rank, (share, sampler) in enumerate(zip(shares, self.samplers, strict=True)):
            if rank not in lost:
                self.seen.update(share[batch * self.batch_size : (batch + 1) * self.batch_size])
            sampler.record_batch(batch, self.batch_size, lost=lost)

    def change(self, change: Change) -> None:
        survivors = [each for rank, each in enumerate(self.samplers) if rank not in change.lost]
        size = len(survivors) + change.num_joined
        state = survivors[0].state_dict()
        self.samplers = survivors
        for rank, sampler in enumerate(survivors):
            with as_rank(rank, size):
                sampler.reset()
        for rank in range(len(survivors), size):
            with as_rank(rank, size):
                self.samplers.append(lg.ElasticSampler(range(self.num_samples), seed=3))
                self.samplers[-1].load_state_dict(state)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), CHANGES)
def test_every_sample_is_seen_and_none_twice_but_for_padding(
    num_samples: int, size: int, batch_size: int, changes: list[Change]
) -> None:
    job = Samplers(num_samples, size, batch_size)
    for change in changes:
        lost = change.lost & frozenset(range(len(job.samplers)))
        if len(lost) == len(job.samplers):
            continue  # nobody is left to go on
        real = Change(change.num_batches, lost, change.num_joined)
        job.train(real)
        job.change(real)
    while not job.train(None) or job.samplers[0].processed_num < num_samples + len(job.samplers[0]._returned):
        job.change(Change(0, frozenset(), 0))
    assert set(job.seen) == set(range(num_samples))
    assert job.seen.total() - num_samples <= job.num_padded
    states = [sampler.state_dict() for sampler in job.samplers]
    assert all(state == states[0] for state in states)


def test_ranks_take_turns_and_two_go_on_where_three_were() -> None:
    """The drawing at the top of the sampler."""
    samplers = []
    for rank in range(3):
        with as_rank(rank, 3):
            samplers.append(lg.ElasticSampler(range(10), shuffle=False))
    assert [list(sampler) for sampler in samplers] == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    for rank, sampler in enumerate(samplers[:2]):
        sampler.record_batch(0, 1)
        sampler.record_batch(1, 1, lost={2})
        with as_rank(rank, 2):
            sampler.reset()
    assert [list(sampler) for sampler in samplers[:2]] == [[6, 8, 5], [7, 9, 6]]
    assert samplers[0].state_dict() == {"epoch": 0, "processed_num": 6, "returned": [5]}


def test_an_epoch_has_an_order_of_its_own_that_all_ranks_know() -> None:
    orders = []
    for rank in range(2):
        with as_rank(rank, 2):
            sampler = lg.ElasticSampler(range(20))
            first = list(sampler)
            sampler.record_batch(0, 5)
            sampler.set_epoch(1)
            orders.append((first, list(sampler)))
            assert sampler.processed_num == 0
    for mine, other in zip(*orders, strict=True):
        assert sorted(mine + other) == list(range(20))
    assert orders[0][0] != orders[0][1]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_fewer_samples_than_ranks_are_padded(size: int) -> None:
    for rank in range(size):
        with as_rank(rank, size):
            assert list(lg.ElasticSampler(range(2), shuffle=False)) == ([0, 1] if size == 1 else [rank % 2])
            empty = lg.ElasticSampler(range(0))
            assert (list(empty), len(empty)) == ([], 0)
