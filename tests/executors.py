"""Executors of plans, asked the same question: in which order do parts start?

    closed link    gradients appear in some order; what credit allows starts, and does not move
    opened         parts move one after the other, in the order in which they started, and the rest starts

An executor is a function of a plan, its tensors and the order in which their gradients appear. To put another one to
the test, add it to `EXECUTORS`, under when its credit comes back.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from legato._native import Collector
from legato.core import Command, Event, Layer, Part, Plan, Start, Task, Tensor, Workload
from legato.core.part import split
from legato.runtime import Runtime
from legato.sim import Architecture, Cluster, Simulation
from legato.transports.buffer import Buffer
from legato.transports.declaration import Declaration
from legato.transports.memory import MemoryHub
from tests.engine.lone import Lone
from tests.engine.mesh import EVERYONE
from tests.engine.wire import PUSH

Executor = Callable[[Plan, Sequence[Tensor], Sequence[int]], list[Part]]


class _Starts:
    """Observes an executor and keeps what starts in step 0."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def event(self, now_s: float, what: Event | Command) -> None:  # noqa: ARG002
        if isinstance(what, Start) and what.part.step == 0:
            self.parts.append(what.part)

    def worked(self, *_: object) -> None:
        pass


def simulated(architecture: Architecture, plan: Plan, tensors: Sequence[Tensor], arrivals: Sequence[int]) -> list[Part]:
    """The simulator: backward takes no time, so all gradients are there before anything has moved."""
    # Gradients appear from the last layer to the first, so the layers are the arrivals backwards.
    layers = [Layer(tensors[index].name, tensors[index].num_bytes, 0.0, 0.0) for index in reversed(arrivals)]
    place = {index: len(arrivals) - 1 - turn for turn, index in enumerate(arrivals)}
    moved = replace(plan, buckets=tuple(tuple(place[index] for index in bucket) for bucket in plan.buckets))
    starts = _Starts()
    cluster = Cluster(workers=2, gbps=1, architecture=architecture)
    # The second step's forward pass waits for all sums of the first.
    Simulation(Workload("closed link", tuple(layers)), cluster, moved, [starts]).advance(2)
    return starts.parts


def run_over_memory(reports_sent: bool, plan: Plan, tensors: Sequence[Tensor], arrivals: Sequence[int]) -> list[Part]:
    """The runtime, which trains over process groups, on the memory transport."""
    hub = MemoryHub(1, timeout_s=20.0, reports_sent=reports_sent)
    hub.hold(lambda part: True)  # noqa: ARG005
    transport = hub.transport(0)
    transport.declare([Declaration(name=each.name, shape=(each.num_bytes // 4,), dtype="float32") for each in tensors])
    transport.set_plan(plan, 0)
    starts = _Starts()
    runtime = Runtime(transport, tensors, plan, timeout_s=20.0, observer=starts.event)
    missing = {index: set(bucket) for index, bucket in enumerate(plan.buckets)}
    for arrival in arrivals:
        bucket = next(index for index, members in missing.items() if arrival in members)
        missing[bucket].remove(arrival)
        if not missing[bucket]:
            num_bytes = sum(tensors[index].num_bytes for index in plan.buckets[bucket])
            memory = Buffer.of(np.ones(num_bytes // 4, np.float32), "bucket")
            transport.offer(0, bucket, memory, memory)
        runtime.ready(Task(0, arrival))
    hub.hold(lambda part: False)  # noqa: ARG005
    runtime.drain()
    runtime.close()
    return starts.parts


SCALE = 1 << 15
"""Every byte of a plan is so many in the engine: the least part is then more than a closed socket takes."""


def run_in_engine(plan: Plan, tensors: Sequence[Tensor], arrivals: Sequence[int]) -> list[Part]:
    """The native engine, whose only server is a socket that nobody reads until all gradients are there.

    What it starts are contributions: the first stage. The second begins at servers.
    """
    arrays = [np.zeros(each.num_bytes * SCALE // 4, np.float32) for each in tensors]
    starts_at = {
        tensor: (bucket, sum(tensors[each].num_bytes for each in members[:place]))
        for bucket, members in enumerate(plan.buckets)
        for place, tensor in enumerate(members)
    }
    with Lone(num_workers=1, num_members=2, trace=True) as worker:
        for members, partition_bytes in zip(plan.buckets, plan.partition_bytes, strict=True):
            for tensor in members:
                ranges = split(tensors[tensor].num_bytes, partition_bytes, 4)
                parts = [(SCALE * offset, SCALE * length, 1, EVERYONE, EVERYONE) for offset, length in ranges]
                worker.declare(tensor, arrays[tensor].nbytes, parts)
        worker.engine.set_credit(0, SCALE * (plan.credit_bytes or 0))
        declared = [(tensor, f"t{tensor}", array.nbytes, None) for tensor, array in enumerate(arrays)]
        collector = Collector(worker.engine, None, declared)
        collector.follow(0, list(zip(plan.buckets, plan.ranks[0], plan.ranks[-1], strict=True)))
        for tensor in arrivals:
            array = arrays[tensor]
            collector.add(tensor, array.ctypes.data, array.nbytes, False, array)
        num_left = sum(array.nbytes for array in arrays)
        while num_left:
            num_left -= worker.peers[1].receive_until(PUSH).header.payload_bytes
        events = worker.engine.take_events()
    return [
        Part(0, starts_at[tensor][0], plan.stages[0], starts_at[tensor][1] + offset // SCALE, length // SCALE)
        for _, what, tensor, _, offset, length in events
        if what == "start"
    ]


EXECUTORS: dict[str, dict[str, Executor]] = {
    "credit comes back when a part has finished": {
        "the simulator's ring": partial(simulated, Architecture.ALLREDUCE),
        "the runtime": partial(run_over_memory, False),
    },
    "credit comes back when a part is sent": {
        "the simulator's parameter server": partial(simulated, Architecture.PS),
        "the runtime, told what is sent": partial(run_over_memory, True),
    },
}
