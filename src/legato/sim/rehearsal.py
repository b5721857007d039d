"""Rehearsal: what a policy would do in one step, written down as a sequence that every rank can follow.

Process groups match operations by the order in which they are issued, so ranks cannot choose while they run. One rank
chooses for all, beforehand: it plays one step of the dynamic policy on the simulated links, with the times at which
its own gradients appeared, and notes what was started in which order.

    ready      2   1     0                     gradients appear as they did
    links      RS2─┐RS1──┐AG2──┐RS0─┐…         two at once, and nothing overtakes what is under way
    sequence   RS2  RS1   AG2   RS0 …

A forward pass needs every sum of the step before, so no operation of one step can come after one of the next, and the
sequence of a single step is enough.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from legato.core import Plan, Tensor
from legato.core.fusion import backward_order
from legato.errors import InputError
from legato.sim.cluster import Architecture, Cluster
from legato.sim.one_step import play


class Rehearsal(NamedTuple):
    """One step, played."""

    plan: Plan
    """With the sequence that it led to. It has no credit any more: where order is fixed, holding an operation back lets
    nothing else go first."""
    arrived_s: tuple[float, ...]
    """When the sum of each tensor was there."""


def rehearse(plan: Plan, tensors: Sequence[Tensor], ready_s: Sequence[float], cluster: Cluster) -> Rehearsal:
    """What becomes of a step in which gradients appear at these times, one for each tensor."""
    if len(ready_s) != len(tensors):
        raise InputError(f"rehearsal: {len(tensors)} tensors, but {len(ready_s)} times")
    if cluster.architecture is not Architecture.ALLREDUCE:
        raise InputError(f"rehearsal: process groups are rings; use arch allreduce instead of {cluster.architecture}")
    played = play(tensors, plan, [(when, tensor) for tensor, when in enumerate(ready_s)], cluster)
    sequence = tuple((part.stage, part.bucket) for part in played.started_s)
    return Rehearsal(replace(plan, sequence=sequence, credit_bytes=None), played.arrived_s)


def assumed_ready_s(tensors: Sequence[Tensor], backward_s: float) -> tuple[float, ...]:
    """When gradients appear, before anybody has seen it: last used, first ready, at a pace by bytes."""
    total = sum(tensor.num_bytes for tensor in tensors) or 1
    ready = [0.0] * len(tensors)
    done = 0
    for index in backward_order(tensors):
        done += tensors[index].num_bytes
        ready[index] = backward_s * done / total
    return tuple(ready)
