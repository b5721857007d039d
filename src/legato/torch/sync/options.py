"""What `schedule` was asked for, so far as it says how gradients travel."""

from dataclasses import dataclass

from legato.compression import Selection
from legato.core import Plan, Policy
from legato.torch.compression import Compressor
from legato.torch.sync.native import Late

RIVAL_POLICIES = ("auto", "bytescheduler")
"""What leaves the choice of transport open. Whoever asks for another one means the transport they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """The same on every transport."""

    prefix: str
    """Of the names that ranks agree on."""
    policy: str | Policy
    partition_bytes: int | None = None
    """Largest part; None leaves it to plans."""
    credit_bytes: int | None = None
    """Bytes in flight; None leaves it to plans."""
    fusion_bytes: int | None = None
    """Neighbours are merged up to this; None leaves it to plans."""
    plan: Plan | None = None
    """What is to be followed as it is; None leaves it to the policy."""
    bytes_per_s: float | None = None
    """What a link of this rank has carried; None where nothing has shown it."""
    compressor: type[Compressor]
    selection: Selection
    backups: int = 0
    late: Late | None = None

    @property
    def is_told(self) -> bool:
        """Whether somebody has asked for a plan or for sizes: then nobody looks for better ones."""
        return any(each is not None for each in (self.plan, self.partition_bytes, self.credit_bytes, self.fusion_bytes))

    @property
    def suits_any_transport(self) -> bool:
        return self.policy in RIVAL_POLICIES and not self.selection.schemes and not self.backups and not self.is_told
