"""Every policy of the literature and legato's own, and the table of their names."""

from legato.core.policies.by_arrival import Fifo, MergedWaitFree, WaitFree
from legato.core.policies.by_priority import P3, ByteScheduler, PushFirst
from legato.core.policies.in_halves import DeAR, ReduceScatterAllGather
from legato.core.policies.tictac import TicTac
from legato.core.policy import Policy
from legato.errors import InputError

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Fifo(),
        WaitFree(),
        MergedWaitFree(),
        P3(),
        TicTac(),
        ByteScheduler(),
        DeAR(),
        ReduceScatterAllGather(),
        PushFirst(),
    )
}


def by_name(name: str) -> Policy:
    """The built-in policy of that name, with its default parameters."""
    try:
        return POLICIES[name]
    except KeyError:
        raise InputError(f"policy {name!r} is unknown; accepted: {', '.join(POLICIES)}") from None


__all__ = [
    "P3",
    "POLICIES",
    "ByteScheduler",
    "DeAR",
    "Fifo",
    "MergedWaitFree",
    "PushFirst",
    "ReduceScatterAllGather",
    "TicTac",
    "WaitFree",
    "by_name",
]
