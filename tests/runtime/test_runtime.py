"""The runtime around the core, on the memory transport: what is ready moves, who waits hears, and errors arrive."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from legato.core import Command, Complete, Event, Part, Plan, Ready, Stage, Start, Task, Tensor
from legato.core.policies import ByteScheduler, ReduceScatterAllGather
from legato.errors import ClosedError, DeadlineError, InputError, PeerLostError
from legato.runtime import Observer, Runtime
from legato.testing.ranks import run_ranks
from legato.transports.buffer import Array, Buffer
from legato.transports.declaration import Declaration
from legato.transports.memory import MemoryHub, MemoryTransport

NUM_TENSORS = 3
TENSORS = tuple(Tensor(name=f"t{index}", num_bytes=16, priority=index) for index in range(NUM_TENSORS))
BYTESCHEDULER = ByteScheduler().plan(TENSORS, partition_bytes=8)


@dataclass
class Rank:
    transport: MemoryTransport
    runtime: Runtime
    arrays: list[Array]

    def ready(self, step: int, tensor: int) -> None:
        """Offer a bucket of one tensor and say so."""
        buffer = Buffer.of(self.arrays[tensor], "t")
        self.transport.offer(step, tensor, buffer, buffer)
        self.runtime.ready(Task(step, tensor))


def crew(
    hub: MemoryHub, plan: Plan = BYTESCHEDULER, timeout_s: float = 10.0, observer: Observer | None = None
) -> list[Rank]:
    def make(rank: int) -> Rank:
        transport = hub.transport(rank)
        transport.declare([Declaration(name=tensor.name, shape=(4,), dtype="float32") for tensor in TENSORS])
        transport.set_plan(plan, 0)
        runtime = Runtime(transport, TENSORS, plan, timeout_s=timeout_s, observer=observer if rank == 0 else None)
        return Rank(transport, runtime, [np.full(4, rank + 1.0, np.float32) for _ in TENSORS])

    return run_ranks(hub.size, make)


@pytest.mark.parametrize("plan", [BYTESCHEDULER, ReduceScatterAllGather().plan(TENSORS, buckets=((0,), (1,), (2,)))])
def test_what_is_ready_everywhere_is_summed(plan: Plan) -> None:
    ranks = crew(MemoryHub(2), plan)

    def train(rank: int) -> None:
        me = ranks[rank]
        for step in range(20):
            for tensor in (0, 1, 2) if rank else (2, 1, 0):
                me.ready(step, tensor)
            for tensor in range(NUM_TENSORS):
                me.runtime.wait(Task(step, tensor))
                assert me.arrays[tensor].tolist() == [3.0] * 4
                me.arrays[tensor][:] = rank + 1
        me.runtime.close()

    run_ranks(2, train)


def test_a_task_completes_only_when_every_rank_is_ready() -> None:
    ranks = crew(MemoryHub(2))
    ranks[0].ready(0, 1)
    with pytest.raises(DeadlineError, match=r"rank 0 waited 0.05 s for tensor 't1' in step 0; SYNC of 't1' in step 0"):
        ranks[0].runtime.wait(Task(0, 1), timeout_s=0.05)
    ranks[1].ready(0, 1)
    for rank in ranks:
        rank.runtime.wait(Task(0, 1))
        rank.runtime.close()


@pytest.mark.parametrize("reports_sent", [True, False])
def test_ranks_whose_windows_are_full_wait_for_each_other_unless_credit_comes_back_when_sent(
    reports_sent: bool,
) -> None:
    """Each rank fills its window of one part with a tensor that the other has not started (docs/decisions/001)."""
    ranks = crew(MemoryHub(2, reports_sent=reports_sent), ByteScheduler().plan(TENSORS, credit_bytes=1))
    for rank, order in zip(ranks, ((0, 1, 2), (1, 0, 2)), strict=True):
        for tensor in order:
            rank.ready(0, tensor)
    if reports_sent:
        for rank in ranks:
            rank.runtime.drain()
    else:
        with pytest.raises(DeadlineError, match="SYNC of 't0' in step 0 has been in flight"):
            ranks[0].runtime.drain(timeout_s=0.05)
    for rank in ranks:
        rank.runtime.close()


def test_a_gradient_of_our_own_that_is_missing_is_named() -> None:
    sequence = ((Stage.SYNC, 2), (Stage.SYNC, 1), (Stage.SYNC, 0))
    plan = replace(ByteScheduler().plan(TENSORS), sequence=sequence)
    [rank] = crew(MemoryHub(1), plan)
    rank.ready(0, 0)
    with pytest.raises(DeadlineError, match=r"gradients of this rank are missing: .*turn=SYNC\(2,\)@0"):
        rank.runtime.wait(Task(0, 0), timeout_s=0.05)
    rank.runtime.close()


def test_parts_start_in_the_order_in_which_they_were_chosen() -> None:
    """Two threads bring gradients at once; what observers hear is what the scheduler decided."""
    seen: list[Event | Command] = []
    hub = MemoryHub(1)
    [rank] = crew(hub, observer=lambda _, what: seen.append(what))
    begin = threading.Barrier(NUM_TENSORS)

    def bring(tensor: int) -> None:
        begin.wait(10.0)
        rank.ready(0, tensor)

    run_ranks(NUM_TENSORS, bring)
    rank.runtime.drain()
    rank.runtime.close()
    starts = [entry.part for entry in seen if isinstance(entry, Start)]
    assert sorted(starts) == [Part(0, tensor, Stage.SYNC, offset, 8) for tensor in range(3) for offset in (0, 8)]
    assert len([entry for entry in seen if isinstance(entry, Ready)]) == NUM_TENSORS
    assert {entry.task.tensor for entry in seen if isinstance(entry, Complete)} == {0, 1, 2}


def test_a_new_plan_begins_with_its_step() -> None:
    seen: list[Event | Command] = []
    [rank] = crew(MemoryHub(1), observer=lambda _, what: seen.append(what))
    rank.ready(0, 0)
    plan = ByteScheduler().plan(TENSORS, partition_bytes=16)
    rank.transport.set_plan(plan, 1)
    rank.runtime.replan(1, plan)
    rank.ready(1, 0)
    rank.runtime.wait(Task(1, 0))
    rank.runtime.close()
    assert [entry.part.length for entry in seen if isinstance(entry, Start)] == [8, 8, 16]


def test_a_lost_peer_reaches_everybody_who_waits_or_comes_later() -> None:
    hub = MemoryHub(2)
    ranks = crew(hub)
    ranks[0].ready(0, 0)
    losing = threading.Timer(0.05, hub.lose, [1])
    losing.start()
    with pytest.raises(PeerLostError, match="rank 1 is gone"):
        ranks[0].runtime.wait(Task(0, 0))
    with pytest.raises(PeerLostError):
        ranks[0].runtime.ready(Task(0, 1))
    with pytest.raises(PeerLostError):
        ranks[0].runtime.drain()
    losing.join(10.0)
    for rank in ranks:
        rank.runtime.close()


def test_an_error_of_the_transport_is_raised_where_it_happens_and_kept_for_the_others() -> None:
    [rank] = crew(MemoryHub(1))
    with pytest.raises(InputError, match="has not been offered"):
        rank.runtime.ready(Task(0, 0))
    with pytest.raises(InputError, match="has not been offered"):
        rank.runtime.wait(Task(0, 0))
    rank.runtime.close()


def test_closing_ends_the_thread_and_the_waiting() -> None:
    before = threading.active_count()
    ranks = crew(MemoryHub(2))
    ranks[0].ready(0, 0)

    def wait_or_close(which: int) -> None:
        if which == 0:
            with pytest.raises(ClosedError):
                ranks[0].runtime.wait(Task(0, 0))
        else:
            ranks[0].runtime.close()

    run_ranks(2, wait_or_close)
    for rank in ranks:
        rank.runtime.close()
        rank.runtime.close()
        rank.runtime._thread.join(10.0)
    assert threading.active_count() <= before


def test_time_is_the_clocks() -> None:
    ticks = iter(range(1000))
    clock: Callable[[], float] = lambda: float(next(ticks))  # noqa: E731
    seen: list[Complete] = []
    hub = MemoryHub(1)
    transport = hub.transport(0)
    transport.declare([Declaration(name=tensor.name, shape=(4,), dtype="float32") for tensor in TENSORS])
    transport.set_plan(BYTESCHEDULER, 0)

    def observe(_: float, what: Event | Command) -> None:
        if isinstance(what, Complete):
            seen.append(what)

    runtime = Runtime(transport, TENSORS, BYTESCHEDULER, clock=clock, observer=observe)
    rank = Rank(transport, runtime, [np.ones(4, np.float32) for _ in TENSORS])
    rank.ready(0, 0)
    runtime.wait(Task(0, 0))
    runtime.close()
    assert seen == [Complete(Task(0, 0), ready_s=0.0, started_s=0.0, finished_s=2.0)]
