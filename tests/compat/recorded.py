"""The predecessors' interfaces, as facts: names, arguments in order, and the defaults of those that have one.

BytePS's are those of 0.2.5; `allgather`, `suspend`, `resume`, `get_pushpull_speed` and `staleness` come from later
branches.
"""

from typing import Any, TypeAlias

Interface: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Arguments by module and name."""
REQUIRED = "required"

_TENSOR = {"tensor": REQUIRED, "average": True, "name": None, "version": 0, "priority": 0}

BYTEPS: Interface = {
    "legato.byteps.torch": {
        "init": {"lazy": True},
        "shutdown": {},
        "suspend": {},
        "resume": {"num_workers": REQUIRED, "num_servers": REQUIRED, "global_rank": REQUIRED, "context": None},
        "rank": {},
        "size": {},
        "local_rank": {},
        "local_size": {},
        "get_pushpull_speed": {},
        "push_pull": {**_TENSOR, "compression": "Compression.none"},
        "push_pull_async": _TENSOR,
        "push_pull_inplace": {**_TENSOR, "staleness": 0},
        "push_pull_async_inplace": {**_TENSOR, "staleness": 0},
        "push_pull_group_sync_inplace": {**_TENSOR, "staleness": 0},
        "allgather": {"tensor": REQUIRED, "same_shape": True, "name": None, "version": 0, "priority": 0},
        "allgather_async": {"tensor": REQUIRED, "shape_list": None, "name": None, "version": 0, "priority": 0},
        "poll": {"handle": REQUIRED},
        "synchronize": {"handle": REQUIRED},
        "declare": {"name": REQUIRED},
        "DistributedOptimizer": {
            "optimizer": REQUIRED,
            "named_parameters": None,
            "compression": "Compression.none",
            "backward_passes_per_step": 1,
        },
        "broadcast_parameters": {"params": REQUIRED, "root_rank": REQUIRED, "prefix": "Parameter."},
        "broadcast_optimizer_state": {"optimizer": REQUIRED, "root_rank": REQUIRED, "prefix": "Parameter."},
        "broadcast_object": {"obj": REQUIRED, "root_rank": 0, "name": None},
    },
    "legato.byteps.torch.cross_barrier": {
        "CrossBarrier": {
            "model": REQUIRED,
            "optimizer": REQUIRED,
            "named_parameters": None,
            "compression": "Compression.none",
            "backward_passes_per_step": 1,
            "num_steps": 10**6,
        },
    },
    "legato.byteps.torch.parallel": {
        "DistributedDataParallel": {
            "module": REQUIRED,
            "device_ids": None,
            "broadcast_buffers": True,
            "compression": "Compression.none",
        },
        "DistributedDataParallel.no_sync": {"self": REQUIRED},
        "DistributedDataParallel.synchronize": {"self": REQUIRED},
    },
    "legato.torch.compat.optimizer": {  # of what BytePS's DistributedOptimizer gives
        "Distributed.step": {"self": REQUIRED, "closure": None},
        "Distributed.synchronize": {"self": REQUIRED},
        "Distributed.skip_synchronize": {"self": REQUIRED},
        "Distributed.set_backward_passes_per_step": {"self": REQUIRED, "passes": REQUIRED},
    },
}

BYTESCHEDULER: Interface = {
    "legato.bytescheduler.pytorch.horovod": {
        "init": {},
        "ScheduledOptimizer": {"model": REQUIRED, "hvd_opt": REQUIRED, "num_steps": 10**6},
    },
}

MISSING = {
    "byteps.torch.send_async": "from one rank to another: there is no such operation here",
    "byteps.torch.recv_async": "from one rank to another: there is no such operation here",
    "byteps.torch.ops.byteps_torch_set_num_grads": "tells BytePS when a group of its own is complete",
    "byteps.torch.ops.batched_fuse_": "a copy between tensors on one device",
    "byteps.torch.ops.batched_unfuse_": "a copy between tensors on one device",
    "byteps.torch.ops.batched_zero_": "zeroes tensors on one device",
    "byteps.torch.ops.delay_compensation_": "part of an optimizer",
    "byteps.torch.ops.dc_adam_": "part of an optimizer",
    "byteps.torch.DistributedOptimizer(staleness, pipesgd_warmup_iter, model)": "use schedule(staleness=)",
    "bytescheduler.common.bytecore.ByteCore": "legato.core.Scheduler, which has no thread, is what schedules here",
    "bytescheduler.common.bytetask.ByteTask": "a task is data here (legato.core)",
    "bytescheduler.mxnet.kvstore.ScheduledKVStore": "legato.mxnet.ScheduledKVStore",
    "bytescheduler.mxnet.horovod": "legato.mxnet.DistributedTrainer",
}
"""What of their interfaces for PyTorch, or beside them, is not here, and why, or what is."""
