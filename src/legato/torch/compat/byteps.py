"""BytePS's functions on tensors and the job: `import legato.torch as bps`."""

import os
import time
import weakref
from typing import Any

import torch

from legato.errors import InputError
from legato.job import Job
from legato.settings import read_settings
from legato.torch import api
from legato.torch.compat import collectives
from legato.torch.compat.handles import Work
from legato.torch.compat.operations import Reduction, chosen, operations
from legato.torch.compression import Compression, Compressor


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
) -> torch.Tensor:
    """The average or the sum of all ranks' tensors. Differentiable.

    `version` numbers BytePS's buffers, and `priority` orders what is under way together: nothing to a call that waits.
    """
    del version, priority
    return collectives.allreduce(tensor, average, name, compression)


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Work[torch.Tensor]:
    """As `push_pull`, with a handle; of what is under way the highest `priority` goes first."""
    del version
    return operations().allreduce(tensor, name, _reduction(average), priority=_urgency(priority))


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    staleness: int = 0,
) -> torch.Tensor:
    return push_pull_async_inplace(tensor, average, name, version, priority, staleness).wait()


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    staleness: int = 0,
) -> Work[torch.Tensor]:
    del version
    if staleness:
        raise InputError(
            f"staleness is {staleness}; a push_pull is synchronous, accepted is 0; asynchronous training is "
            "schedule(model, optimizer, staleness=...)"
        )
    return operations().allreduce(tensor, name, _reduction(average), in_place=True, priority=_urgency(priority))


def push_pull_group_sync_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    staleness: int = 0,
) -> tuple[Work[torch.Tensor], int]:
    """As `push_pull_async_inplace`, with the number of its kind that are under way, this one included."""
    handle = push_pull_async_inplace(tensor, average, name, version, priority, staleness)
    members = _groups.setdefault(api.current(), [])
    members[:] = [member for member in members if not member.poll()] + [handle]
    return handle, len(members)


def declare(name: str, **properties: Any) -> None:
    """Nothing: a tensor is made known when it is first used, because only then its shape is."""
    del name, properties


def get_pushpull_speed() -> tuple[int, float]:
    """(milliseconds since the epoch, megabytes per second sent and received since the last call)."""
    return int(time.time() * 1000), operations().speed()


def suspend() -> None:
    """Leave the job, to come back with `resume`."""
    api.shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> None:
    """Join a job of another size, as the given rank or the one of the environment."""
    settings = read_settings(os.environ)
    if num_servers != settings.num_servers:
        raise InputError(f"num_servers is {num_servers}, but LEGATO_SERVERS says {settings.num_servers}; set it first")
    api.init(rank=settings.rank if global_rank < 0 else global_rank, num_workers=num_workers)


_groups: weakref.WeakKeyDictionary[Job, list[Work[torch.Tensor]]] = weakref.WeakKeyDictionary()
"""What `push_pull_group_sync_inplace` has under way, by job."""


def _reduction(average: bool) -> Reduction:
    return Reduction(op=chosen(None, average))


def _urgency(priority: int) -> int:
    """BytePS sends the highest number first, legato the lowest, from 0."""
    return max(-priority, 0)
