"""TicTac: Hashemi et al., "TicTac: Accelerating Distributed Deep Learning with Communication Scheduling", SysML'19.

The paper ranks the transfers of a computation graph by three properties: M, the time of the transfers an operation
still waits for; P, the computation that one transfer alone would release; M⁺, the smallest M among the operations
that wait for this transfer and others. TIC needs the graph only (every transfer costs 1, computation nothing) and
ranks by M⁺; TAC needs times and chooses, one transfer after the other, by a pairwise comparison.

What the core knows of the graph is the chain of first uses: operation p needs the tensors of priority p, and
operation p - 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from typing import Any

from legato.core.part import Stage
from legato.core.plan import Plan
from legato.core.policy import Bucket, Order, Policy
from legato.core.task import Tensor
from legato.core.workload import Timing


class TicTac(Policy):
    """Whole tensors in TIC's order, or in TAC's where times are known; handed to the network one after the other."""

    name = "tictac"
    credit_bytes = 1
    """Less than any tensor, so that one is in flight at a time."""

    def order(self, bucket: Bucket, stage: Stage) -> Order:  # noqa: ARG002
        return (bucket.priority,)

    def plan(self, tensors: Sequence[Tensor], *, timing: Timing | None = None, **options: Any) -> Plan:
        ranks = tic(tensors) if timing is None else tac(tensors, timing)
        ranked = [replace(tensor, priority=rank) for tensor, rank in zip(tensors, ranks, strict=True)]
        return super().plan(ranked, timing=timing, **options)


def tic(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Timing-independent ranks: M⁺ with every transfer at cost 1; equal ones by first use."""
    outstanding = _by_first_use(tensors, range(len(tensors)))
    smallest = _smallest_shared(tensors, [1.0] * len(tensors), outstanding)
    return _ranks(sorted(outstanding, key=smallest.__getitem__))


def tac(tensors: Sequence[Tensor], timing: Timing) -> tuple[int, ...]:
    """Timing-aware ranks: repeatedly take the transfer that no other should precede."""
    transfer_s = [timing.startup_s + tensor.num_bytes * timing.seconds_per_byte for tensor in tensors]
    outstanding = _by_first_use(tensors, range(len(tensors)))
    order: list[int] = []
    while outstanding:
        smallest = _smallest_shared(tensors, transfer_s, outstanding)
        released = _released_computation(tensors, timing, outstanding)
        best = outstanding[0]
        for other in outstanding[1:]:
            # The paper's comparison: b goes before a when min(P_a, M_b) < min(P_b, M_a), and at a draw by M⁺.
            if_best_first = min(released.get(other, 0.0), transfer_s[best])
            if_other_first = min(released.get(best, 0.0), transfer_s[other])
            if (if_other_first, smallest[other]) < (if_best_first, smallest[best]):
                best = other
        order.append(best)
        outstanding.remove(best)
    return _ranks(order)


def _by_first_use(tensors: Sequence[Tensor], indices: Iterable[int]) -> list[int]:
    return sorted(indices, key=lambda index: tensors[index].priority)


def _ranks(order: Sequence[int]) -> tuple[int, ...]:
    ranks = [0] * len(order)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return tuple(ranks)


def _smallest_shared(tensors: Sequence[Tensor], cost: Sequence[float], outstanding: Sequence[int]) -> dict[int, float]:
    """M⁺ of every outstanding transfer. On a chain, the first operation that waits for two or more decides."""
    result = dict.fromkeys(outstanding, inf)
    undecided: list[int] = []
    total, count = 0.0, 0
    for _, operation in groupby(outstanding, key=lambda index: tensors[index].priority):
        needed = list(operation)
        undecided += needed
        count += len(needed)
        total += sum(cost[index] for index in needed)
        if count > 1:
            result.update(dict.fromkeys(undecided, total))
            undecided = []
    return result


def _released_computation(tensors: Sequence[Tensor], timing: Timing, outstanding: Sequence[int]) -> dict[int, float]:
    """P: what the front transfer releases if its operation waits for it alone; all others release nothing."""
    front = outstanding[0]
    start = tensors[front].priority
    until = tensors[outstanding[1]].priority if len(outstanding) > 1 else inf
    return {
        front: sum(
            seconds
            for tensor, seconds in zip(tensors, timing.forward_s, strict=True)
            if start <= tensor.priority < until
        )
    }
