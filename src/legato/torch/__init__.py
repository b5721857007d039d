"""Legato for PyTorch.

import legato.torch as lg
lg.init()
model, optimizer = lg.schedule(model, optimizer)

Scripts written for Horovod, BytePS or ByteScheduler find their interfaces in `legato.horovod`, `legato.byteps` and
`legato.bytescheduler` (docs/compatibility.md).
"""

from legato.torch.api import (
    current_plan,
    flush,
    init,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    no_sync,
    num_steps,
    on_membership,
    rank,
    schedule,
    shutdown,
    size,
    unschedule,
    watch_gradients,
)
from legato.torch.compat.collectives import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    reducescatter,
    reducescatter_async,
)
from legato.torch.compat.handles import poll, synchronize
from legato.torch.compat.objects import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from legato.torch.compat.operations import Average, Max, Min, Product, ReduceOp, Sum
from legato.torch.compat.optimizer import DistributedOptimizer
from legato.torch.compat.parallel import DistributedDataParallel, ddp_hook, ddp_state
from legato.torch.compat.sync_batchnorm import SyncBatchNorm
from legato.torch.compat.timeline import start_timeline, stop_timeline
from legato.torch.compression import Compression
from legato.torch.relaxed.backups import left_out
from legato.torch.sampler import ElasticSampler
from legato.torch.scheduling.clipping import clip_grad_norm_, reduce_gradients
from legato.torch.scheduling.scaler import GradScaler

__all__ = [
    "Average",
    "Compression",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "ElasticSampler",
    "GradScaler",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "clip_grad_norm_",
    "current_plan",
    "ddp_hook",
    "ddp_state",
    "flush",
    "init",
    "is_initialized",
    "left_out",
    "local_rank",
    "local_size",
    "metrics",
    "no_sync",
    "num_steps",
    "on_membership",
    "poll",
    "rank",
    "reduce_gradients",
    "reducescatter",
    "reducescatter_async",
    "schedule",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "unschedule",
    "watch_gradients",
]
