"""Hosts: which members run on one machine and can reach each other through memory."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/thread-self/ns/net")


def identity() -> str:
    """What all members on one host say of it and no other can: boot, network and user; empty where it cannot be told.

    The network namespace is part of it because members in different ones are to each other like machines: the sockets
    by which memory is handed over do not reach across. So is the user, because memory is shared with no other.
    """
    try:
        return f"{_BOOT.read_text().strip()}/{_NETWORK.stat().st_ino}/{os.geteuid()}"
    except OSError:
        return ""


def number(identities: Sequence[str]) -> tuple[int, ...]:
    """The host of each member, from 0 in the order of their first members. Who does not say is alone on its own."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(said or member, len(numbers)) for member, said in enumerate(identities))


def words(hosts: Sequence[int]) -> str:
    """`members 0, 1 share a host; members 2, 3 share a host`, or that nobody does."""
    shared = [host for host, count in sorted(Counter(hosts).items()) if count > 1]
    lists = (", ".join(str(member) for member, other in enumerate(hosts) if other == host) for host in shared)
    return "; ".join(f"members {members} share a host" for members in lists) or "every member has a host of its own"
