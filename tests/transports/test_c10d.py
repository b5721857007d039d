"""The c10d transport over Gloo, with ranks as threads: the contract where order allows it, both halves, and errors."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from legato.core.part import Part, Stage
from legato.core.policies import ReduceScatterAllGather
from legato.core.scheduler import Finished
from legato.core.task import Tensor
from legato.errors import DeadlineError, InputError, MismatchError, PeerLostError, PlanError
from legato.testing.ranks import run_ranks
from legato.testing.transport_contract import TransportContract
from legato.transports.base import Transport
from legato.transports.c10d.collectives import HostFlight
from legato.transports.c10d.transport import C10dTransport, buffer_of
from legato.transports.declaration import Declaration


def gloo_groups(size: int, timeout_s: float = 20.0) -> Callable[[int], dist.ProcessGroup]:
    """Makes the group of a rank. Groups of torch.distributed's own world cannot be had twice in a process."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # missing in torch's own list

    def make(rank: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, size)
        gloo = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        return group

    return make


class TestC10d(TransportContract):
    def transports(self, size: int) -> Callable[[int], Transport]:
        groups = gloo_groups(size)
        return lambda rank: C10dTransport(groups(rank))

    def test_ranks_may_start_parts_in_different_orders(self) -> None:
        pytest.skip("a process group matches operations by order; the plan's sequence sees to that")


def prepared(group: dist.ProcessGroup, num_items: int, reduction: str = "sum") -> tuple[C10dTransport, torch.Tensor]:
    """A rank that has offered one bucket, of its rank + 1 everywhere."""
    transport = C10dTransport(group)
    transport.declare([Declaration(name="t", shape=(num_items,), dtype="float32")])
    tensors = [Tensor(name="t", num_bytes=4 * num_items, priority=0)]
    transport.set_plan(ReduceScatterAllGather().plan(tensors), 0)
    values = torch.full((num_items,), transport.rank + 1.0)
    transport.offer(0, 0, buffer_of(values), buffer_of(values), reduction=reduction)
    return transport, values


@pytest.mark.parametrize("num_items", [12, 13, 1])
@pytest.mark.parametrize(
    ("reduction", "result"), [("sum", 6.0), ("average", 2.0), ("min", 1.0), ("max", 3.0), ("product", 6.0)]
)
def test_both_halves_make_the_whole(num_items: int, reduction: str, result: float) -> None:
    groups = gloo_groups(3)

    def body(rank: int) -> None:
        transport, values = prepared(groups(rank), num_items, reduction)
        part = Part(0, 0, Stage.REDUCE_SCATTER, 0, 4 * num_items)
        for stage in (Stage.REDUCE_SCATTER, Stage.ALL_GATHER):
            transport.start(part._replace(stage=stage))
            assert transport.events(10.0) == [Finished(part._replace(stage=stage))]
        assert values.tolist() == [result] * num_items
        with pytest.raises(InputError, match="has not been offered"):
            transport.start(part)
        transport.close()

    run_ranks(3, body)


def test_after_the_first_half_every_rank_has_its_share() -> None:
    groups = gloo_groups(2)

    def body(rank: int) -> None:
        transport, values = prepared(groups(rank), 4)
        transport.start(Part(0, 0, Stage.REDUCE_SCATTER, 0, 16))
        assert transport.events(10.0)
        assert values[2 * rank : 2 * rank + 2].tolist() == [3.0, 3.0]
        transport.close()

    run_ranks(2, body)


def test_a_part_in_flight_cannot_be_started_again() -> None:
    groups = gloo_groups(1)
    transport, _ = prepared(groups(0), 4)
    part = Part(0, 0, Stage.REDUCE_SCATTER, 0, 16)
    transport.start(part)
    with pytest.raises(InputError, match="has been started before on rank 0"):
        transport.start(part)
    transport.close()


def test_what_one_rank_says_is_heard_by_all() -> None:
    groups = gloo_groups(3)

    def body(rank: int) -> str:
        return C10dTransport(groups(rank)).broadcast("Grüße" if rank == 0 else None)

    assert run_ranks(3, body) == ["Grüße"] * 3


def test_another_number_of_tensors_is_an_error_on_every_rank() -> None:
    groups = gloo_groups(2)

    def body(rank: int) -> None:
        tensors = [Declaration(name=f"t{index}", shape=(1,), dtype="float32") for index in range(rank + 1)]
        with pytest.raises(MismatchError, match="rank 0 has 1, rank 1 has 2"):
            C10dTransport(groups(rank)).declare(tensors)

    run_ranks(2, body)


def test_a_step_without_a_plan_is_refused() -> None:
    transport = C10dTransport(gloo_groups(1)(0))
    values = torch.ones(1)
    with pytest.raises(PlanError, match="step 0 has no plan"):
        transport.offer(0, 0, buffer_of(values), buffer_of(values))
    with pytest.raises(InputError, match="reduction is 'median'"):
        transport.offer(0, 0, buffer_of(values), buffer_of(values), reduction="median")


def test_a_rank_that_does_not_come_is_waited_for_until_the_groups_timeout() -> None:
    groups = gloo_groups(2, timeout_s=0.5)

    def body(rank: int) -> C10dTransport:
        transport, _ = prepared(groups(rank), 4)
        if rank == 0:
            transport.start(Part(0, 0, Stage.REDUCE_SCATTER, 0, 16))
            assert transport.events(0.05) == []
            with pytest.raises(DeadlineError, match="rank 0: REDUCE_SCATTER of 't' in step 0 failed"):
                transport.events(10.0)
        return transport

    run_ranks(2, body)


def test_a_rank_that_is_gone_ends_the_wait_at_once() -> None:
    groups = gloo_groups(2)

    def body(rank: int) -> None:
        transport, _ = prepared(groups(rank), 4)
        if rank == 0:
            transport.start(Part(0, 0, Stage.REDUCE_SCATTER, 0, 16))
            with pytest.raises(PeerLostError, match="rank 0: REDUCE_SCATTER of 't' in step 0 failed"):
                transport.events(10.0)

    run_ranks(2, body)


class _EndsLate:
    """Work that ends, well or badly, between the end of the first wait for it and the look at it."""

    def __init__(self, error: str | None) -> None:
        self._error = error
        self._num_waits = 0

    def wait(self, timeout: timedelta | None = None) -> None:
        self._num_waits += 1
        if self._num_waits == 1:
            assert timeout is not None
            raise RuntimeError("Operation timed out!")
        if self._error is not None:
            raise RuntimeError(self._error)

    def is_completed(self) -> bool:
        return True


def test_what_ends_as_the_wait_for_it_does_has_ended() -> None:
    landed: list[bool] = []
    assert HostFlight(_EndsLate(None), lambda: landed.append(True)).wait(0.001)
    assert landed == [True]
    with pytest.raises(RuntimeError, match="connection reset"):
        HostFlight(_EndsLate("connection reset"), lambda: landed.append(False)).wait(0.001)
    assert landed == [True]
