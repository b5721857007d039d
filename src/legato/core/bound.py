"""T*, the shortest possible iteration."""

from collections.abc import Sequence


def bound(forward_s: Sequence[float], backward_s: Sequence[float], communication_s: Sequence[float]) -> float:
    """T* for layers in forward order: no schedule of one link can be shorter.

        T* = max( Σ(f+b),  max_i [ Σ_{j≥i}(f_j+b_j) + Σ_{j≤i} c_j ] )

    Why: the gradients of layers 0..i appear only when backward has come down from the last layer to i, that is after
    Σ_{j>i} b_j + b_i; none of layers i+1.. may run forward before tensor i has arrived, and Σ_{j≤i} c_j must pass the
    link between the two. Preemptive priority by forward order reaches it when parts are infinitely small and free
    (ByteScheduler, SOSP'19, theorem 1).
    """
    compute_from_here = 0.0
    to_come = sum(communication_s)
    best = sum(forward_s) + sum(backward_s)
    for forward, backward, communication in zip(
        reversed(forward_s), reversed(backward_s), reversed(communication_s), strict=True
    ):
        compute_from_here += forward + backward
        best = max(best, compute_from_here + to_come)
        to_come -= communication
    return best
