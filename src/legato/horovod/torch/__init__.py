"""Horovod for PyTorch: the same names, arguments and defaults, over legato's engine.

import legato.horovod.torch as hvd  # was: import horovod.torch as hvd

docs/compatibility.md says what is different; tests/torch/horovod/test_signatures.py compares all names and arguments.
"""

from legato.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from legato.horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from legato.horovod.torch import elastic
from legato.horovod.torch.basics import cross_rank, cross_size, init, is_homogeneous
from legato.horovod.torch.build import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from legato.horovod.torch.collectives import (
    allgather,
    broadcast,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
    sparse_allreduce_async,
)
from legato.horovod.torch.state import broadcast_optimizer_state
from legato.torch.api import is_initialized, local_rank, local_size, rank, shutdown, size
from legato.torch.compat.collectives import (
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
)
from legato.torch.compat.handles import poll, synchronize
from legato.torch.compat.joining import join
from legato.torch.compat.objects import allgather_object, broadcast_object, broadcast_parameters
from legato.torch.compat.operations import Adasum, Average, Max, Min, Product, Sum
from legato.torch.compat.optimizer import DistributedOptimizer
from legato.torch.compat.sync_batchnorm import SyncBatchNorm
from legato.torch.compat.timeline import start_timeline, stop_timeline
from legato.torch.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
