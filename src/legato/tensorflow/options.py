"""How the tensors of one exchange travel."""

from dataclasses import dataclass
from typing import Any

from legato.compression import PLAIN, Selection, select
from legato.errors import InputError
from legato.exchange import NativePlanner
from legato.job import Job
from legato.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions:
    """What users say where they wrap a tape or an optimizer; the environment's word where they say nothing."""

    policy: str | None = None
    """The name of a policy (docs/policies.md), or "auto"."""
    partition_bytes: int | str | None = None
    """The largest part."""
    credit_bytes: int | str | None = None
    """What may be in flight at once."""
    compression: Any = None
    """How gradients travel (docs/compression.md)."""

    def planner(self, job: Job) -> NativePlanner:
        settings = job.settings
        return NativePlanner(
            policy=settings.policy if self.policy is None else self.policy,
            partition_bytes=_size("partition_bytes", self.partition_bytes, settings.partition_bytes),
            credit_bytes=_size("credit_bytes", self.credit_bytes, settings.credit_bytes),
            fusion_bytes=settings.fusion_bytes,
        )

    def selection(self, job: Job) -> Selection:
        return PLAIN if self.compression is None else select(self.compression, job.settings.min_compress_bytes)


def _size(name: str, given: int | str | None, default: int | None) -> int | None:
    if given is None:
        return default
    num_bytes = parse_bytes(given) if isinstance(given, str) else given
    if num_bytes < 1:
        raise InputError(f"{name} is {given!r}; accepted is a size such as 262144, 256KiB or 4MB")
    return num_bytes
