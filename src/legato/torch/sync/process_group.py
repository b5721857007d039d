"""Process groups: the part of torch.distributed that legato uses beside the user, never the user's own group.

Operations of a group are matched by order, and the user's come from another thread: on a group of our own the two
cannot get between each other.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist

from legato.errors import InputError
from legato.job import Job
from legato.observe import Timeline
from legato.transports.buffer import Buffer, Bufferable
from legato.transports.c10d.collectives import gather_rows
from legato.transports.native.group import NativeGroup
from legato.transports.native.handle import Handle


class World:
    """torch.distributed, initialised by us because nobody had; it ends with the job."""

    def remove(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def ensure_world(job: Job) -> None:
    """Initialise torch.distributed where the user has not, if the launcher's environment says how."""
    if dist.is_initialized():
        return
    if job.settings.launcher != "torchrun":
        raise InputError(
            "transport='c10d' needs torch.distributed: call torch.distributed.init_process_group(...) before "
            "legato.torch.schedule, or start the script with torchrun"
        )
    backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=job.settings.join_timeout_s))
    job.keep(World())


class ProcessGroup:
    """Ranks on connections of our own, with the backend that the user has chosen."""

    def __init__(
        self, timeout_s: float, backend: str | None = None, hosts: Sequence[Sequence[int]] | None = None
    ) -> None:
        """All ranks, or those of the one of these `hosts` on which this one is; every rank gives the same."""
        backend = dist.get_backend() if backend is None else backend
        self.is_nccl = backend == dist.Backend.NCCL
        for ranks in (None,) if hosts is None else hosts:
            timeout = timedelta(seconds=timeout_s)
            handle = dist.new_group(ranks, backend=backend, timeout=timeout, group_desc="legato")
            if handle != dist.GroupMember.NON_GROUP_MEMBER:
                self.handle = handle
        self.rank = self.handle.rank()
        self.size = self.handle.size()

    def broadcast_async(self, name: str, value: Bufferable, *, root: int) -> Handle[Bufferable]:
        """Overwrite the value's memory with the root's; the same calls in the same order on every rank."""
        self.broadcast(name, value, root=root)
        return _Over(value)

    def broadcast(self, name: str, value: Bufferable, *, root: int) -> Bufferable:
        """The same, waiting for it."""
        memory = torch.from_numpy(Buffer.of(value, name).array())
        wire = memory.cuda() if self.is_nccl else memory
        dist.broadcast(wire, group_src=root, group=self.handle)
        if self.is_nccl:
            memory.copy_(wire)
        return value

    def allgather(self, name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The rows of all ranks, one after another; ranks may have different numbers of them."""
        del name
        mine = torch.tensor(value, device="cuda" if self.is_nccl else "cpu")
        return torch.cat(gather_rows(self.handle, mine)).numpy()

    def remove(self) -> None:
        """End it; also with the job, where that keeps it."""
        # The user may have destroyed torch.distributed before, and with it every group.
        with suppress(ValueError):
            dist.destroy_process_group(self.handle)


Group = NativeGroup | ProcessGroup
"""All ranks, where they gather and broadcast."""


class _Over:
    """The handle of something that is over."""

    def __init__(self, value: Bufferable) -> None:
        self._value = value

    def poll(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> Bufferable:  # noqa: ARG002
        return self._value


def group_apart(job: Job) -> ProcessGroup:
    """Where ranks compare notes while gradients are under way on other groups; one for the job.

    Over Gloo, where there is: an operation of NCCL on one group can hold up those on another.
    """
    for kept in job.kept:
        if isinstance(kept, ProcessGroup):
            return kept
    made = ProcessGroup(job.settings.timeout_s, "gloo" if dist.is_gloo_available() else None)
    job.keep(made)
    return made


class _Meeting:
    """Ranks that meet for the timeline over connections of its own, since a schedule closes those that it uses."""

    def __init__(self, timeline: Timeline, timeout_s: float) -> None:
        self._timeline = timeline
        self._group = ProcessGroup(timeout_s)
        timeline.meet(self._group)

    def remove(self) -> None:
        self._timeline.stop()
        self._timeline.leave()
        self._group.remove()


def meet_over_process_group(job: Job) -> None:
    """Where there is no native group, a timeline's ranks meet over torch.distributed."""
    if job.timeline.on and not job.timeline.has_met:
        job.keep(_Meeting(job.timeline, job.settings.timeout_s))
