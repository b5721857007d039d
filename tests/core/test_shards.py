"""Shards: every byte owned once, every link with its share."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.core.shards import Deployment, Shard, Shards
from legato.errors import InputError


def lay_out(
    tensors: Sequence[tuple[int, int]], deployment: Deployment, partition_bytes: int | None
) -> list[tuple[Shard, ...]]:
    """The shards of tensors given as (num_bytes, item_bytes)."""
    shards = Shards(deployment)
    return [shards.add(num_bytes, item_bytes, partition_bytes) for num_bytes, item_bytes in tensors]


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    num_workers, num_servers = draw(st.integers(1, 9)), draw(st.integers(0, 9))
    num_members = num_workers + num_servers
    return Deployment(
        num_workers=num_workers,
        num_servers=num_servers,
        workers_serve=not num_servers or draw(st.booleans()),
        hosts=tuple(
            draw(st.one_of(st.just([]), st.lists(st.integers(0, 3), min_size=num_members, max_size=num_members)))
        ),
    )


TENSORS = st.lists(
    st.builds(
        lambda items, item_bytes: (items * item_bytes, item_bytes), st.integers(0, 3000), st.sampled_from([1, 4, 8])
    ),
    max_size=40,
)
PARTITIONS = st.one_of(st.none(), st.integers(8, 5000))


def test_joint_members_own_equal_shares() -> None:
    assert Deployment(num_workers=4).shares() == (Fraction(1, 4),) * 4


def test_separate_servers_own_everything() -> None:
    separate = Deployment(num_workers=3, num_servers=2, workers_serve=False)
    assert separate.shares() == (Fraction(0),) * 3 + (Fraction(1, 2),) * 2
    assert separate.owners() == (3, 4)


def test_mixed_shares_make_every_link_equally_busy() -> None:
    """With n = 4 and k = 2, n²+kn-2k = 20."""
    mixed = Deployment(num_workers=4, num_servers=2)
    assert mixed.shares() == (Fraction(2, 20),) * 4 + (Fraction(6, 20),) * 2
    worker, server = mixed.shares()[0], mixed.shares()[-1]
    assert (1 - worker) + 3 * worker == 4 * server == Fraction(2 * 4 * 3, 20)


def test_hosts_own_equal_shares_however_many_workers_they_have() -> None:
    joint = Deployment(num_workers=5, hosts=(0, 1, 1, 1, 1))
    assert joint.shares() == (Fraction(1, 2), *(Fraction(1, 8),) * 4)
    mixed = Deployment(num_workers=6, num_servers=1, hosts=(0, 0, 1, 1, 2, 2, 3))
    assert mixed.shares() == (*(Fraction(1, 10),) * 6, Fraction(2, 5))
    assert (
        Deployment(num_workers=2, num_servers=1, hosts=(0, 0, 1)).shares()
        == Deployment(num_workers=2, num_servers=1).shares()
    ), "workers on one host share no link"


@pytest.mark.parametrize("num_servers", [4, 5])
def test_workers_own_nothing_from_as_many_servers_as_workers_on(num_servers: int) -> None:
    mixed = Deployment(num_workers=4, num_servers=num_servers)
    assert mixed.shares() == (0,) * 4 + (Fraction(1, num_servers),) * num_servers


def test_the_parts_of_one_tensor_go_round() -> None:
    (shards,) = lay_out([(10, 2)], Deployment(num_workers=3), partition_bytes=4)
    assert shards == (Shard(0, 4, 0), Shard(4, 4, 1), Shard(8, 2, 2))


def test_small_tensors_go_to_whoever_has_least() -> None:
    shards = lay_out([(8, 4), (4, 4), (4, 4), (0, 4)], Deployment(num_workers=2), partition_bytes=None)
    assert [parts[0].server for parts in shards] == [0, 1, 1, 0]


@given(tensors=TENSORS, deployment=deployments(), partition_bytes=PARTITIONS)
def test_every_byte_is_in_exactly_one_part(
    tensors: list[tuple[int, int]], deployment: Deployment, partition_bytes: int | None
) -> None:
    for (num_bytes, item_bytes), parts in zip(tensors, lay_out(tensors, deployment, partition_bytes), strict=True):
        assert [part.offset for part in parts] == [0, *(part.offset + part.length for part in parts[:-1])]
        assert parts[-1].offset + parts[-1].length == num_bytes
        assert all(part.offset % item_bytes == 0 for part in parts)
        assert all(partition_bytes is None or part.length <= partition_bytes for part in parts)


@given(tensors=TENSORS, deployment=deployments(), partition_bytes=PARTITIONS)
def test_no_member_is_more_than_a_part_off_its_share(
    tensors: list[tuple[int, int]], deployment: Deployment, partition_bytes: int | None
) -> None:
    shards = Shards(deployment)
    longest = 0
    loads = dict.fromkeys(deployment.owners(), 0)
    for num_bytes, item_bytes in tensors:
        for part in shards.add(num_bytes, item_bytes, partition_bytes):
            longest = max(longest, part.length)
            loads[part.server] += part.length
        for member, load in loads.items():
            assert load - deployment.shares()[member] * sum(loads.values()) <= longest


@given(tensors=TENSORS, deployment=deployments(), partition_bytes=PARTITIONS)
def test_consecutive_parts_go_to_different_members(
    tensors: list[tuple[int, int]], deployment: Deployment, partition_bytes: int | None
) -> None:
    if len(deployment.owners()) == 1:
        return
    for parts in lay_out(tensors, deployment, partition_bytes):
        assert all(before.server != after.server for before, after in pairwise(parts))


def test_a_large_tensor_uses_every_member() -> None:
    (parts,) = lay_out([(1 << 20, 4)], Deployment(num_workers=5, num_servers=2), partition_bytes=4096)
    assert {part.server for part in parts} == set(range(7))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_workers": 0}, "num_workers=0 must be at least 1"),
        ({"num_workers": 1, "num_servers": -1}, "num_servers=-1 must be 0 or more"),
        ({"num_workers": 1, "workers_serve": False}, "somebody must sum"),
        ({"num_workers": 2, "hosts": (0,)}, "hosts has 1 entries, but there are 2 members"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Deployment(**values)  # type: ignore[arg-type]
