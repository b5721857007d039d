"""Shards: which member sums which part, so that every link carries its share of the bytes."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from legato.core.part import split
from legato.errors import InputError


def balanced(n: int, k: int, *, workers_serve: bool) -> tuple[Fraction, Fraction]:
    """What each of n workers and each of k extra servers owns of all bytes, so that no link is busier than another.

    A worker that owns the share w sends 1-w of its own gradient and receives (n-1)w of the others'; a server that owns
    s receives n·s. Setting both equal with n·w + k·s = 1 gives (BytePS, OSDI'20, section 4.1):

        worker  w = (n-k) / (n²+kn-2k)        server  s = 2(n-1) / (n²+kn-2k)

    From k = n on the servers' links suffice and workers own nothing.
    """
    if not k:
        return Fraction(1, n), Fraction(0)
    if not workers_serve or k >= n:
        return Fraction(0), Fraction(1, k)
    whole = n * n + k * n - 2 * k
    return Fraction(n - k, whole), Fraction(2 * (n - 1), whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Who is in a job. Members 0..num_workers-1 are workers, the rest are servers without a worker."""

    num_workers: int
    """Members that train."""
    num_servers: int = 0
    """Extra members that only sum."""
    workers_serve: bool = True
    """Whether workers own parts too (joint, or mixed when there are extra servers)."""
    num_learners: int = 0
    """Of the workers, the last ones: they get every average, give nothing to it and are not counted."""
    hosts: tuple[int, ...] = ()
    """The host of each member; empty where each has its own. Workers on one host share its link."""

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise InputError(f"num_workers={self.num_workers} must be at least 1")
        if not 0 <= self.num_learners < self.num_workers:
            raise InputError(f"num_learners={self.num_learners} must be 0 or more, and fewer than the workers")
        if self.num_servers < 0:
            raise InputError(f"num_servers={self.num_servers} must be 0 or more")
        if not self.workers_serve and not self.num_servers:
            raise InputError("num_servers=0, but the workers do not serve: somebody must sum the gradients")
        if self.hosts and len(self.hosts) != self.num_members:
            raise InputError(f"hosts has {len(self.hosts)} entries, but there are {self.num_members} members")

    @property
    def num_members(self) -> int:
        return self.num_workers + self.num_servers

    def neighbours(self, member: int, other: int) -> bool:
        """Whether two members are on one host."""
        return bool(self.hosts) and self.hosts[member] == self.hosts[other]

    def shares(self) -> tuple[Fraction, ...]:
        """The fraction of all bytes that each member owns, so that no link is busier than another.

        A gradient crosses the network once per host, so the workers of one own what is `balanced` for hosts together.
        """
        places = self.hosts[: self.num_workers]
        if len(set(places)) < 2:
            places = tuple(range(self.num_workers))  # what all on one host share is memory, not a link
        crowds = Counter(places)
        host_share, server_share = balanced(len(crowds), self.num_servers, workers_serve=self.workers_serve)
        return (*(host_share / crowds[host] for host in places), *(server_share,) * self.num_servers)

    def owners(self) -> tuple[int, ...]:
        """The members that own parts."""
        return tuple(member for member, share in enumerate(self.shares()) if share)


class Shard(NamedTuple):
    """A part and the member that sums it."""

    offset: int
    length: int
    server: int


class Shards:
    """Gives the parts of one tensor after another to the members.

    Each part goes to the owner that lacks most of its share so far, but never to the one that got the part before it
    in the same tensor: so a large tensor uses every owner's link, and no owner has more than its share and one part.
    The same tensors in the same order give the same answer everywhere, so ranks need not exchange it.
    """

    def __init__(self, deployment: Deployment) -> None:
        shares = {member: share for member, share in enumerate(deployment.shares()) if share}
        # Shares over one denominator: the deficits below are then whole numbers, exact and equal on every machine.
        self._whole = lcm(*(share.denominator for share in shares.values()))
        self._weights = {member: int(share * self._whole) for member, share in shares.items()}
        self._loads = dict.fromkeys(shares, 0)
        self._total = 0

    def add(self, num_bytes: int, item_bytes: int, partition_bytes: int | None) -> tuple[Shard, ...]:
        """Cut the next tensor into parts and give each to a member."""
        shards: list[Shard] = []
        previous: int | None = None
        for offset, length in split(num_bytes, partition_bytes, item_bytes):
            previous = self._choose(length, previous)
            shards.append(Shard(offset, length, previous))
        return tuple(shards)

    def _choose(self, length: int, previous: int | None) -> int:
        self._total += length
        candidates = [member for member in self._loads if member != previous] or list(self._loads)
        chosen = max(candidates, key=lambda member: (self._deficit(member), -member))
        self._loads[chosen] += length
        return chosen

    def _deficit(self, member: int) -> int:
        return self._weights[member] * self._total - self._whole * self._loads[member]
