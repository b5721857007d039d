"""Subgroups: some of a group's ranks as a group of their own.

A subgroup is a small job beside the large one, with its own conductor, connections and names. So what its ranks do
waits for nobody else, several subgroups work at once, and nothing in the engine has to know of them:

    every rank of the parent tells the others whom it means         a gather; they must mean the same
    the lowest of them has opened a conductor, and says where       in the same gather
    the members join it                                             as they joined the parent

Its ranks are places in the list of members: the lowest member is rank 0. Its workers sum for themselves, also where the
parent has servers.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from legato.core.shards import Deployment
from legato.errors import InputError, MismatchError
from legato.transports.native.group import NativeGroup
from legato.transports.native.session import NativeConfig
from legato.transports.rendezvous.conductor import Conductor


def open_subgroup(parent: NativeGroup, name: str, ranks: Sequence[int]) -> NativeGroup | None:
    """A group of these ranks of the parent's; None on the others. Every rank of the parent calls it, with the same.

    `name` is the gather's, new for each subgroup. The parent's end is the subgroup's.
    """
    check_members(ranks, parent.size)
    is_lowest = parent.rank == ranks[0] and len(ranks) > 1
    config = _config(parent, ranks)
    conductor = Conductor(config.member, config.common()) if is_lowest else None
    try:
        port = _agree(parent, name, ranks, 0 if conductor is None else conductor.port)
        if parent.rank not in ranks or len(ranks) == 1:
            return None
        found = replace(config, member=replace(config.member, conductor_port=port))
        group = NativeGroup(found, conductor)
    except BaseException:
        if conductor is not None:
            conductor.close()
        raise
    parent.adopt(group)
    return group


def check_members(ranks: Sequence[int], size: int) -> None:
    """An InputError where these cannot be ranks of one subgroup, in order."""
    if not ranks or list(ranks) != sorted(set(ranks)) or ranks[0] < 0 or ranks[-1] >= size:
        raise InputError(f"ranks are {list(ranks)}; accepted are different ranks from 0 to {size - 1}, at least one")


def _config(parent: NativeGroup, ranks: Sequence[int]) -> NativeConfig:
    config = parent.session.config
    member = replace(
        config.member,
        rank=ranks.index(parent.rank) if parent.rank in ranks else 0,
        deployment=Deployment(num_workers=len(ranks)),
        conductor_host=parent.session.member.addresses[ranks[0]][0],
        conductor_port=0,
        port=0,
    )
    return replace(config, member=member)


def _agree(parent: NativeGroup, name: str, ranks: Sequence[int], port: int) -> int:
    """The port of the subgroup's conductor, once every rank has named the same members."""
    said = np.zeros((1, parent.size + 1), np.int64)
    said[0, list(ranks)] = 1
    said[0, -1] = port
    everybody = parent.allgather(name, said)
    for rank, row in enumerate(everybody[:, :-1]):
        if not np.array_equal(row, everybody[0, :-1]):
            first, other = (np.flatnonzero(members).tolist() for members in (everybody[0, :-1], row))
            raise MismatchError(
                f"rank 0 wants a subgroup of ranks {first}, rank {rank} one of {other}; every rank must name the same",
                rank=rank,
            )
    return int(everybody[ranks[0], -1])
