"""BytePS's interface for PyTorch, by its names, arguments and defaults (docs/compatibility.md)."""

from legato.byteps.torch.ops import (
    allgather,
    allgather_async,
    declare,
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
    rank,
    resume,
    size,
    suspend,
)
from legato.byteps.torch.optimizer import (
    DistributedOptimizer,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from legato.torch.api import shutdown
from legato.torch.compat.handles import poll, synchronize
from legato.torch.compression import Compression

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allgather_async",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
