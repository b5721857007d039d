"""Whatever the plan, and in whatever order gradients appear on each rank: over a parameter server everything finishes.

Ranks choose by themselves there, so each may fill its window with parts that another has yet to start. Credit that came
back with the sum would then never come back (docs/decisions/001); it comes back when a part has left.
"""

from heapq import heapify, heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.core import Command, Event, Finished, Plan, Ready, Scheduler, Sent, Start, Task, Tensor
from legato.core.policies import ByteScheduler
from legato.sim import Cluster, Group
from legato.sim.network import Arrival, Progress, make_network
from tests.core.plans import plans, tensors_of


def unfinished(
    tensors: tuple[Tensor, ...], plan: Plan, orders: list[list[int]], *, tell_sent: bool = True
) -> list[str]:
    """What is left when nothing happens any more, on each rank that has something left.

    `orders`: in which order gradients appear on each rank, at one a second, step after step.
    """
    ranks = [Scheduler(tensors, plan) for _ in orders]
    # A host for each rank, at 4 bytes a second.
    cluster = Cluster(workers=len(ranks), gbps=32e-9, latency_s=0.5, groups=(Group(hosts=1),) * len(ranks))
    network, _ = make_network(cluster)
    tie = count()
    events: list[tuple[float, int, int, Event | Arrival]] = [
        (float(place), next(tie), rank, Ready(Task(place // len(tensors), tensor)))
        for rank, order in enumerate(orders)
        for place, tensor in enumerate([*order, *order])
    ]
    heapify(events)
    while events:
        now, _, rank, event = heappop(events)
        arrivals: list[Arrival] = []
        commands: list[Command] = []
        match event:
            case Ready():
                commands = ranks[rank].handle(now, event)
            case (_, _, part, Progress.FINISHED):
                commands = ranks[rank].handle(now, Finished(part))
            case (_, _, part, progress):
                arrivals += network.progressed(now, rank, part, progress)
                if progress is Progress.SENT and tell_sent:
                    commands = ranks[rank].handle(now, Sent(part))
        for command in commands:
            if isinstance(command, Start):
                arrivals += network.start(now, rank, command.part)
        for arrival in arrivals:
            heappush(events, (arrival[0], next(tie), arrival[1], arrival))
    return [repr(scheduler) for scheduler in ranks if not scheduler.idle]


@settings(deadline=None)
@given(st.data())
def test_everything_finishes(data: st.DataObject) -> None:
    tensors = tensors_of(*data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=6)))
    order = st.permutations(range(len(tensors)))
    orders = data.draw(st.lists(order, min_size=1, max_size=4))
    assert unfinished(tensors, data.draw(plans(tensors)), orders) == []


@pytest.mark.parametrize("tell_sent", [True, False])
def test_it_would_not_if_credit_came_back_with_the_sum(tell_sent: bool) -> None:
    tensors = tensors_of(1, 1)
    plan = ByteScheduler().plan(tensors, credit_bytes=1)
    left = unfinished(tensors, plan, [[0, 1], [1, 0]], tell_sent=tell_sent)
    assert len(left) == (0 if tell_sent else 2)
