"""How large parts are, and how many are on their way, where nobody says: what a link carries decides.

ByteScheduler's 4 MB and 16 MB come from links of 100 Gbit/s. On slower ones an urgent part waits behind whatever is
on its way, so both are times: a part takes some 4 ms on its link, and three may be on their way. That was the best of
what was tried on four hosts at 1 Gbit/s; bench/results/README.md has all of it.
"""

from typing import NamedTuple

from legato.core import Policy
from legato.core.policies import ByteScheduler

PART_S = 4e-3
LEAST_PARTITION_BYTES = 256 << 10
"""Smaller parts made steps longer at 1 Gbit/s: twice as long with 64 KiB, 1.1 to 1.7 times with 128 KiB."""
PARTS_IN_FLIGHT = 3


class Sizes(NamedTuple):
    """None leaves it to the policy."""

    partition_bytes: int | None
    credit_bytes: int | None


def needs_link(policy: Policy, given: Sizes) -> bool:
    """Whether something is left to the link: policies of other papers keep their own sizes."""
    return policy.name == ByteScheduler.name and None in given


def fitted(given: Sizes, bytes_per_s: float) -> Sizes:
    """What was given, and the rest by what a link carries: the largest power of two that takes no longer."""
    short = max(int(bytes_per_s * PART_S), LEAST_PARTITION_BYTES)
    partition_bytes = given.partition_bytes or min(1 << short.bit_length() - 1, ByteScheduler.partition_bytes)
    return Sizes(partition_bytes, given.credit_bytes or PARTS_IN_FLIGHT * partition_bytes)
