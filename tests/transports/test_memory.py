"""The memory transport passes the contract, and can be told to misbehave."""

from collections.abc import Callable

import numpy as np
import pytest

from legato.core.part import Part, Stage
from legato.core.plan import Plan
from legato.core.policies import Fifo, ReduceScatterAllGather
from legato.core.scheduler import Finished
from legato.core.task import Tensor
from legato.errors import InputError, PeerLostError
from legato.testing.ranks import run_ranks
from legato.testing.transport_contract import TransportContract
from legato.transports.base import Transport
from legato.transports.buffer import Array, Buffer
from legato.transports.declaration import Declaration
from legato.transports.memory import MemoryHub, MemoryTransport

TENSORS = (Tensor(name="t", num_bytes=16, priority=0),)
PART = Part(0, 0, Stage.SYNC, 0, 16)


class TestMemory(TransportContract):
    def transports(self, size: int) -> Callable[[int], Transport]:
        return MemoryHub(size, timeout_s=10.0).transport


class TestMemoryThatReportsWhatIsSent(TransportContract):
    def transports(self, size: int) -> Callable[[int], Transport]:
        return MemoryHub(size, timeout_s=10.0, reports_sent=True).transport


def ready_pair(hub: MemoryHub, plan: Plan) -> tuple[list[MemoryTransport], list[Array]]:
    """Two ranks that have offered a bucket of ones."""
    arrays = [np.ones(4, np.float32), np.ones(4, np.float32)]

    def prepare(rank: int) -> MemoryTransport:
        transport = hub.transport(rank)
        transport.declare([Declaration(name="t", shape=(4,), dtype="float32")])
        transport.set_plan(plan, 0)
        buffer = Buffer.of(arrays[rank], "t")
        transport.offer(0, 0, buffer, buffer)
        return transport

    return run_ranks(2, prepare), arrays


def test_held_parts_finish_when_released() -> None:
    hub = MemoryHub(2)
    ranks, arrays = ready_pair(hub, Fifo().plan(TENSORS))
    hub.hold(lambda part: part.bucket == 0)
    for rank in ranks:
        rank.start(PART)
    assert [rank.events(0.0) for rank in ranks] == [[], []]
    assert arrays[0].tolist() == [1.0] * 4
    hub.hold(lambda part: False)  # noqa: ARG005
    assert [rank.events(5.0) for rank in ranks] == [[Finished(PART)], [Finished(PART)]]
    assert arrays[0].tolist() == [2.0] * 4


def test_a_lost_rank_ends_the_wait_of_the_others() -> None:
    hub = MemoryHub(2)
    ranks, _ = ready_pair(hub, Fifo().plan(TENSORS))
    ranks[0].start(PART)
    hub.lose(1)
    with pytest.raises(PeerLostError, match="rank 1 is gone") as caught:
        ranks[0].events(5.0)
    assert caught.value.rank == 1


def test_two_stages_leave_the_destination_alone_until_the_second() -> None:
    hub = MemoryHub(2)
    ranks, arrays = ready_pair(hub, ReduceScatterAllGather().plan(TENSORS))
    first, second = PART._replace(stage=Stage.REDUCE_SCATTER), PART._replace(stage=Stage.ALL_GATHER)
    for rank in ranks:
        rank.start(first)
    assert arrays[0].tolist() == [1.0] * 4
    for rank in ranks:
        rank.start(second)
    assert [rank.events(5.0) for rank in ranks] == [[Finished(first), Finished(second)]] * 2
    assert arrays[0].tolist() == [2.0] * 4


def test_a_part_that_was_not_offered_cannot_start() -> None:
    hub = MemoryHub(1)
    with pytest.raises(InputError, match="has not been offered"):
        hub.transport(0).start(PART)


def test_a_rank_outside_the_hub_is_refused() -> None:
    with pytest.raises(InputError, match="rank=2 must be 0 to 1"):
        MemoryHub(2).transport(2)
