"""BytePS's functions on tensors and the job."""

import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from legato.byteps.torch.optimizer import attach_again
from legato.errors import InputError
from legato.job import Job, job_of
from legato.settings import Settings, read_settings
from legato.torch import api
from legato.torch.api import shutdown  # noqa: F401 - BytePS has it, and the next two, in this module too
from legato.torch.compat import collectives
from legato.torch.compat.handles import Work, poll, synchronize  # noqa: F401
from legato.torch.compat.operations import Reduction, chosen, operations
from legato.torch.compression import Compression, Compressor
from legato.transports.rendezvous import addresses


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


def allgather(
    tensor: torch.Tensor, same_shape: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """All ranks' tensors, one after the other; their sizes are found out, whether they are the same or not."""
    del same_shape, version, priority
    return collectives.allgather(torch.atleast_1d(tensor), name)


def allgather_async(
    tensor: torch.Tensor,
    shape_list: Sequence[int] | None = None,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> Work[torch.Tensor]:
    del shape_list, version, priority
    return collectives.allgather_async(torch.atleast_1d(tensor), name)


def declare(name: str, **properties: Any) -> None:
    """Nothing: a tensor is made known when it is first used, because only then its shape is."""
    del name, properties


def get_pushpull_speed() -> tuple[int, float]:
    """(milliseconds since the epoch, megabytes per second sent and received since the last call)."""
    return int(time.time() * 1000), operations().speed()


def init(lazy: bool = True) -> None:
    """Join the job. `lazy` is BytePS's: connections are made when they are first needed anyway."""
    del lazy
    api.init()
    _left.clear()


def suspend() -> None:
    """Leave the job, to come back with `resume`. Until then, ranks and sizes are those of the job that was left."""
    _left[:] = [api.current().settings]
    api.shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int = -1, context: Any = None) -> None:
    """Join a job of other numbers, as the given rank or the one of the environment; the conductor's place stays.

    As everywhere in BytePS, a worker is a machine where its launcher has started several processes on each.
    """
    del context
    if api.is_initialized():
        raise InputError("resume() comes after suspend(), and this job is still running")
    here = read_settings(os.environ)
    if num_workers < 1 or num_servers < 0:
        raise InputError(f"num_workers={num_workers}, num_servers={num_servers}; accepted are 1 or more, and 0 or more")
    size = num_workers * (here.local_size if here.launcher == "BytePS" else 1)
    rank = here.rank if global_rank < 0 else global_rank
    if rank is None or rank >= size:
        raise InputError(f"global_rank is {rank}; accepted is 0 to {size - 1}, for {size} processes")
    local_size = min(here.local_size, size)
    told = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank % local_size,
        "LOCAL_WORLD_SIZE": local_size,
        "LEGATO_SERVERS": num_servers,
        "LEGATO_CONDUCTOR": addresses.text(here.conductor_host, here.conductor_port),
    }
    environ = {**os.environ, **{name: str(value) for name, value in told.items()}}
    api.begin(job_of(replace(read_settings(environ), launcher=here.launcher, told_by="resume()")))
    _left.clear()
    attach_again()


def rank() -> int:
    """Of this process among all."""
    return _settings().rank or 0


def size() -> int:
    return _settings().num_workers


def local_rank() -> int:
    return _settings().local_rank


def local_size() -> int:
    return _settings().local_size


_left: list[Settings] = []
"""Of the job that `suspend` has left, until `resume`."""


def _settings() -> Settings:
    return _left[-1] if _left and not api.is_initialized() else api.current().settings


_groups: weakref.WeakKeyDictionary[Job, list[Work[torch.Tensor]]] = weakref.WeakKeyDictionary()
"""What `push_pull_group_sync_inplace` has under way, by job."""


def _reduction(average: bool) -> Reduction:
    return Reduction(op=chosen(None, average))


def _urgency(priority: int) -> int:
    """BytePS sends the highest number first, legato the lowest, from 0."""
    return max(-priority, 0)
