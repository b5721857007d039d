"""Fusion: merging small tensors into buckets that travel as one.

A bucket is written as the tuple of its tensors' indices. Buckets are built in the order in which gradients appear,
from the last layer to the first, so that a bucket never waits long for its last member.
"""

from collections.abc import Sequence
from itertools import chain, repeat

from legato.core.task import Tensor

Buckets = tuple[tuple[int, ...], ...]


def backward_order(tensors: Sequence[Tensor]) -> list[int]:
    """Indices in the order in which gradients appear: last used, first ready."""
    return sorted(range(len(tensors)), key=lambda index: -tensors[index].priority)


def one_per_tensor(tensors: Sequence[Tensor]) -> Buckets:
    """No fusion."""
    return tuple((index,) for index in range(len(tensors)))


def fill(tensors: Sequence[Tensor], cap_bytes: int, first_cap_bytes: int | None = None) -> Buckets:
    """Fill buckets until each reaches its cap, as PyTorch's DDP does: the tensor that reaches it still goes in."""
    caps = chain([cap_bytes if first_cap_bytes is None else first_cap_bytes], repeat(cap_bytes))
    cap = next(caps)
    buckets: list[tuple[int, ...]] = []
    bucket: list[int] = []
    size = 0
    for index in backward_order(tensors):
        bucket.append(index)
        size += tensors[index].num_bytes
        if size >= cap:
            buckets.append(tuple(bucket))
            bucket, size, cap = [], 0, next(caps)
    return (*buckets, tuple(bucket)) if bucket else tuple(buckets)


def merge_small(tensors: Sequence[Tensor], limit_bytes: int) -> Buckets:
    """Merge neighbours while they fit in `limit_bytes` together; what is larger stays alone."""
    buckets: list[tuple[int, ...]] = []
    bucket: list[int] = []
    size = 0
    for index in backward_order(tensors):
        if bucket and size + tensors[index].num_bytes > limit_bytes:
            buckets.append(tuple(bucket))
            bucket, size = [], 0
        bucket.append(index)
        size += tensors[index].num_bytes
    return (*buckets, tuple(bucket)) if bucket else tuple(buckets)


def set_apart(tensors: Sequence[Tensor], limit_bytes: int) -> Buckets:
    """Tensors that reach `limit_bytes` alone; the others together, past the large ones, until they reach it.

    For transports that move a tensor in its own memory: only what is merged has to be copied, and no crumb between two
    large tensors costs an operation of its own.
    """
    small = [tensor for tensor in range(len(tensors)) if tensors[tensor].num_bytes < limit_bytes]
    alone = [(index,) for index in backward_order(tensors) if tensors[index].num_bytes >= limit_bytes]
    merged = fill([tensors[index] for index in small], limit_bytes)
    return (*alone, *(tuple(small[place] for place in bucket) for bucket in merged))
