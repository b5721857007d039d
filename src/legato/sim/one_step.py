"""One step instead of a run: what a tuner can afford to simulate between two real steps.

Every layer's forward waits for its tensor, so when backward begins nothing of the step before is under way, and alike
hosts repeat the same step for ever. Gradients then appear at times that communication cannot change, and the iteration
follows from when each sum arrives:

    backward   b3 b2 b1 b0 │                      begins with idle links
    links         ══3══╤2╤═1═╤0╤═1═╤2╤═3═         one step of the scheduler
    forward                │···f0·f1··f2·f3│      layer i begins when layer i-1 is through and sum i is here
               ├────────── iteration ──────┤
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from legato.core import Command, Finished, Part, Plan, Ready, Scheduler, Sent, Start, Task, Tensor, Workload
from legato.errors import InputError
from legato.sim.cluster import Cluster
from legato.sim.network import Arrival, Progress, make_network


class Played(NamedTuple):
    """What became of the parts of one step, from the first gradient to the last sum."""

    arrived_s: tuple[float, ...]
    """When the sum of each tensor was there."""
    started_s: dict[Part, float]
    """When each part started, in the order in which they did."""
    finished_s: dict[Part, float]
    """The same for their ends."""


class Step(NamedTuple):
    """One step of the steady state."""

    iteration_s: float
    """From the beginning of one backward pass to the beginning of the next."""
    parts: Played


def one_step(workload: Workload, cluster: Cluster, plan: Plan) -> Step:
    """Simulate one step of hosts that are all alike, at the cluster's bandwidth of second 0."""
    groups = cluster.all_groups
    if len(groups) != 1:
        raise InputError(f"one step: the hosts must be alike, but there are {len(groups)} groups")
    layers, speed = workload.layers, groups[0].speed
    played = play(workload.tensors, plan, _ready(workload, speed), cluster)
    now = sum(layer.backward_s for layer in layers) / speed
    if plan.step_barrier:
        now = max(now, *played.arrived_s)
    arrivals = iter(played.arrived_s)
    for layer in layers:
        if layer.num_bytes:
            now = max(now, next(arrivals))
        now += layer.forward_s / speed
    return Step(now, played)


def coarsened(workload: Workload, cluster: Cluster, plan: Plan, max_parts: int) -> tuple[Cluster, Plan]:
    """A cheaper question with nearly the same answer: k times larger parts at k times the price of a part.

    What parts cost together stays the same, and so does how the window's size compares with a round trip; only the
    grain at which urgent parts overtake is coarser, by less than k / max_parts of all bytes.
    """
    parts = _num_parts(workload, plan)
    factor = -(-parts // max_parts)
    if factor == 1:
        return cluster, plan
    # What was one part of a small tensor stays one; only tensors of many parts get cheaper.
    coarse = replace(
        plan,
        partition_bytes=tuple(None if size is None else size * factor for size in plan.partition_bytes),
        credit_bytes=None if plan.credit_bytes is None else plan.credit_bytes * factor,
    )
    price = parts / _num_parts(workload, coarse)
    return replace(cluster, latency_s=cluster.latency_s * price, overhead_s=cluster.overhead_s * price), coarse


def _num_parts(workload: Workload, plan: Plan) -> int:
    return sum(map(len, plan.parts(workload.tensors)))


def _ready(workload: Workload, speed: float) -> list[tuple[float, int]]:
    """When each tensor's gradient is there, counted from the beginning of backward, and in its order."""
    ready: list[tuple[float, int]] = []
    tensor, now = len(workload.tensors), 0.0
    for layer in reversed(workload.layers):
        now += layer.backward_s / speed
        if layer.num_bytes:
            tensor -= 1
            ready.append((now, tensor))
    return ready


def play(tensors: Sequence[Tensor], plan: Plan, ready: Sequence[tuple[float, int]], cluster: Cluster) -> Played:
    """What becomes of a step, given when the gradient of each tensor appears; those of one moment do in this order."""
    scheduler = Scheduler(tensors, plan)
    network, _ = make_network(cluster)
    # (when, sequence, what has become of which part, or a tensor whose gradient is ready)
    events: list[tuple[float, int, tuple[Part, Progress] | int]] = [
        (when, sequence, tensor) for sequence, (when, tensor) in enumerate(ready)
    ]
    heapify(events)
    sequence = len(events)
    arrived_s = [0.0] * len(tensors)
    started_s: dict[Part, float] = {}
    finished_s: dict[Part, float] = {}
    while events:
        now, _, arrived = heappop(events)
        commands: list[Command] = []
        arrivals: list[Arrival] = []
        match arrived:
            case int(tensor):
                commands = scheduler.handle(now, Ready(Task(0, tensor)))
            case part, Progress.FINISHED:
                finished_s[part] = now
                commands = scheduler.handle(now, Finished(part))
            case part, progress:
                arrivals += network.progressed(now, 0, part, progress)
                if progress is Progress.SENT:
                    commands = scheduler.handle(now, Sent(part))
        for command in commands:
            if isinstance(command, Start):
                started_s[command.part] = now
                arrivals += network.start(now, 0, command.part)
            else:
                arrived_s[command.task.tensor] = now
        for when, _, part, progress in arrivals:
            sequence += 1
            heappush(events, (when, sequence, (part, progress)))
    return Played(tuple(arrived_s), started_s, finished_s)
