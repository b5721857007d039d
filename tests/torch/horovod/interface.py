"""The names of `horovod.torch` 0.28.1 with their arguments and defaults, as facts to compare with.

A function is written as it is called; a name alone is a constant, a module, an exception or a class that is not called.
"""

REDUCE = "op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set"
SCATTER = "op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0"

FUNCTIONS = {
    "add_process_set": "process_set",
    "allgather": "tensor, name=None, process_set=global_process_set",
    "allgather_async": "tensor, name=None, process_set=global_process_set",
    "allgather_object": "obj, name=None",
    "allreduce": f"tensor, average=None, name=None, compression=Compression.none, {REDUCE}",
    "allreduce_": f"tensor, average=None, name=None, {REDUCE}",
    "allreduce_async": f"tensor, average=None, name=None, {REDUCE}",
    "allreduce_async_": f"tensor, average=None, name=None, {REDUCE}",
    "alltoall": "tensor, splits=None, name=None, process_set=global_process_set",
    "alltoall_async": "tensor, splits=None, name=None, process_set=global_process_set",
    "barrier": "process_set=global_process_set",
    "broadcast": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_async": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=global_process_set",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=global_process_set",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_parameters": "params, root_rank",
    "ccl_built": "",
    "cross_rank": "",
    "cross_size": "",
    "cuda_built": "",
    "ddl_built": "",
    "DistributedOptimizer": (
        "optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1, op=Average, "
        "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, "
        "process_set=global_process_set"
    ),
    "gloo_built": "",
    "gloo_enabled": "",
    "grouped_allgather": "tensors, name=None, process_set=global_process_set",
    "grouped_allgather_async": "tensors, name=None, process_set=global_process_set",
    "grouped_allreduce": f"tensors, average=None, name=None, compression=Compression.none, {REDUCE}",
    "grouped_allreduce_": f"tensors, average=None, name=None, {REDUCE}",
    "grouped_allreduce_async": f"tensors, average=None, name=None, {REDUCE}",
    "grouped_allreduce_async_": f"tensors, average=None, name=None, {REDUCE}",
    "grouped_reducescatter": f"tensors, name=None, compression=Compression.none, {SCATTER}",
    "grouped_reducescatter_async": f"tensors, name=None, {SCATTER}",
    "init": "comm=None, process_sets=None",
    "is_homogeneous": "",
    "is_initialized": "",
    "join": "device=-1",
    "local_rank": "",
    "local_size": "",
    "mpi_built": "",
    "mpi_enabled": "",
    "mpi_threads_supported": "",
    "nccl_built": "",
    "poll": "handle",
    "ProcessSet": "ranks_or_comm",
    "rank": "",
    "reducescatter": f"tensor, name=None, compression=Compression.none, {SCATTER}",
    "reducescatter_async": f"tensor, name=None, {SCATTER}",
    "remove_process_set": "process_set",
    "rocm_built": "",
    "shutdown": "",
    "size": "",
    "sparse_allreduce_async": "tensor, name, op, process_set=global_process_set",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
    "synchronize": "handle",
}

CONSTANTS = {
    "Adasum",
    "Average",
    "Compression",
    "elastic",
    "global_process_set",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
}

METHODS = {
    "DistributedOptimizer": {
        "set_backward_passes_per_step": "passes",
        "skip_synchronize": "",
        "step": "closure=None",
        "synchronize": "",
    },
    "ProcessSet": {"included": "", "rank": "", "size": ""},
}

ELASTIC = {
    "ElasticSampler": "dataset, shuffle=True, seed=0",
    "TorchState": "model=None, optimizer=None",
    "run": "func",
}
"""In `horovod.torch.elastic`."""

ELASTIC_METHODS = {
    "ElasticSampler": {
        "load_state_dict": "state_dict",
        "record_batch": "batch_idx, batch_size",
        "reset": "",
        "set_epoch": "epoch",
        "state_dict": "",
    },
    "TorchState": {
        "check_host_updates": "",
        "commit": "",
        "on_hosts_updated": "timestamp, update_res",
        "on_reset": "",
        "register_reset_callbacks": "callbacks",
        "reset": "",
        "restore": "",
        "save": "",
        "sync": "",
    },
}

MORE = {
    "HostsUpdatedInterrupt": "in Horovod it is in horovod.common.exceptions alone",
}
"""What it has and Horovod does not, under that name."""
