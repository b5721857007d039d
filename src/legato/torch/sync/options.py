"""SyncOptions: what moves a schedule's gradients, and where there is a choice, the two that it is between."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from legato.compression import Selection
from legato.core import Plan, Policy
from legato.errors import InputError, LegatoError
from legato.job import Job
from legato.torch.compression import Compressor
from legato.torch.sync.c10d import C10dSynchronizer
from legato.torch.sync.c10d_plan import StaticConfig
from legato.torch.sync.native import Late, NativeSynchronizer
from legato.torch.sync.native_plan import NativePlanner
from legato.torch.sync.process_group import ProcessGroup, ensure_world
from legato.torch.sync.switching import Switching
from legato.torch.sync.synchronizer import Slot, Synchronizer
from legato.transports.native.group import NativeGroup
from legato.tuning.candidate import C10D, NATIVE, Candidate

_log = logging.getLogger(__name__)

RIVAL_POLICIES = ("auto", "bytescheduler")
"""What leaves the choice of transport open. Whoever asks for another one means the transport they have."""

Group = NativeGroup | ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """What `schedule` was asked for, so far as it says how gradients travel."""

    job: Job
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

    def over(self, group: Group, slots: Sequence[Slot]) -> Synchronizer:
        """A synchronizer of these slots."""
        if isinstance(group, NativeGroup):
            return self._native(group, slots)
        if self.selection.schemes:
            raise InputError("codecs need transport native; over c10d, compression is none, fp16 or bf16")
        return C10dSynchronizer(
            group,
            self.prefix,
            slots,
            self.compressor,
            config=StaticConfig(
                policy=self.policy,
                bucket_bytes=self.partition_bytes,
                credit_bytes=self.credit_bytes,
                fusion_bytes=self.fusion_bytes,
                given=self.plan,
            ),
            timeline=self.job.timeline,
            timeout_s=self.job.settings.timeout_s,
        )

    def over_either(self, group: Group, rival: Group, slots: Sequence[Slot]) -> Switching:
        """Both, and the first one to begin with."""
        both = {transport_of(each): self.over(each, slots) for each in (group, rival)}
        return Switching(both, transport_of(group), len(slots))

    def _native(self, group: NativeGroup, slots: Sequence[Slot]) -> NativeSynchronizer:
        planner = NativePlanner(
            policy=self.policy,
            partition_bytes=self.partition_bytes,
            credit_bytes=self.credit_bytes,
            fusion_bytes=self.fusion_bytes,
            given=self.plan,
            bytes_per_s=self.bytes_per_s,
        )
        synchronizer = NativeSynchronizer(
            group,
            self.prefix,
            slots,
            self.compressor,
            self.selection,
            planner=planner,
            backups=self.backups,
            late=self.late,
        )
        if (self.is_told or self.policy != "auto") and not synchronizer.is_planned:
            reason = "steps with backups follow no plan" if self.backups else "the plan is that of the first schedule"
            _log.warning("only the order of this plan is followed, not its sizes and barriers: %s", reason)
        return synchronizer

    @property
    def is_told(self) -> bool:
        """Whether somebody has asked for a plan or for sizes: then nobody looks for better ones."""
        return any(each is not None for each in (self.plan, self.partition_bytes, self.credit_bytes, self.fusion_bytes))

    @property
    def suits_any_transport(self) -> bool:
        return self.policy in RIVAL_POLICIES and not self.selection.schemes and not self.backups and not self.is_told


def usual_transport(*, on_cuda: bool) -> str:
    """What `auto` begins with: ours, except where an accelerator's tensors are trained over NCCL."""
    return C10D if _is_over_nccl() and on_cuda else NATIVE


def group_of(job: Job, transport: str, *, on_cuda: bool) -> Group:
    """What moves tensors."""
    if transport == "auto":
        transport = usual_transport(on_cuda=on_cuda)
    if transport == NATIVE:
        return job.group
    if transport == C10D:
        ensure_world(job)
        return ProcessGroup(job.settings.timeout_s)
    raise InputError(f"transport {transport!r} is unknown; accepted: auto, native, c10d")


def rival_of(job: Job, group: Group, *, on_cuda: bool) -> Group | None:
    """The other transport, where every rank has it: the process group that the user trains over, or ours.

    None where results must not depend on which was faster: sums are made in another order.
    """
    has_world = dist.is_available() and dist.is_initialized() and (on_cuda or not _is_over_nccl())
    if not _all(group, job.name("rival"), has_world and not torch.are_deterministic_algorithms_enabled()):
        return None
    if isinstance(group, NativeGroup):
        return ProcessGroup(job.settings.timeout_s)
    rival = None
    try:
        rival = job.group
    except LegatoError as error:
        _log.info("transport native is not tried: %s", error)
    return rival if _all(group, job.name("rival"), rival is not None) else None


def transport_of(group: Group) -> str:
    return NATIVE if isinstance(group, NativeGroup) else C10D


def candidate_of(synchronizer: Synchronizer) -> Candidate:
    """What a synchronizer runs, as tuning says it."""
    if isinstance(synchronizer, C10dSynchronizer):
        return Candidate(synchronizer.policy, transport=C10D)
    return Candidate("bytescheduler", transport=NATIVE)


def _is_over_nccl() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_backend() == dist.Backend.NCCL


def _all(group: Group, name: str, mine: bool) -> bool:
    """Whether it is so on every rank."""
    return bool(group.allgather(name, np.array([mine], np.uint8)).all())
