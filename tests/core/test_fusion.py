"""Fusion that sets large tensors apart, for transports that move them in their own memory."""

from hypothesis import given
from hypothesis import strategies as st

from legato.core import Tensor
from legato.core.fusion import set_apart


def tensors_of(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=f"t{place}", num_bytes=size, priority=place, item_bytes=1) for place, size in enumerate(sizes)
    )


def test_small_tensors_meet_past_the_large_ones_between_them() -> None:
    assert set_apart(tensors_of(1, 40, 1, 10, 6, 5, 40, 4), 10) == ((6,), (3,), (1,), (7, 5, 4), (2, 0))
    assert set_apart(tensors_of(10, 10), 10) == ((1,), (0,))
    assert set_apart((), 10) == ()


@given(sizes=st.lists(st.integers(0, 40), max_size=20), limit_bytes=st.integers(1, 50))
def test_every_tensor_once_and_no_bucket_small_but_the_last(sizes: list[int], limit_bytes: int) -> None:
    buckets = set_apart(tensors_of(*sizes), limit_bytes)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(sizes)))
    totals = [sum(sizes[index] for index in bucket) for bucket in buckets]
    assert all(total >= limit_bytes for total in totals[:-1])
    assert all(total < 2 * limit_bytes for bucket, total in zip(buckets, totals, strict=True) if len(bucket) > 1)
