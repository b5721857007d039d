"""A communication hook for torch's own DistributedDataParallel: its buckets, averaged by legato's engine.

ddp_model.register_comm_hook(lg.ddp_state(), lg.ddp_hook)
"""

from concurrent.futures import ThreadPoolExecutor

import torch

from legato.job import Job
from legato.torch import api
from legato.torch.compat.handles import Work
from legato.torch.compat.operations import Operations, Reduction, operations
from legato.torch.compression import Compressor, compressor_of


class DDPState:
    """What the hook keeps between buckets; one for each model."""

    def __init__(self, operations: Operations, name: str, compressor: type[Compressor]) -> None:
        self.operations = operations
        self.name = name
        self.compressor = compressor
        # torch wants a future, and the engine's tasks have none: one thread waits for them, in the order of buckets.
        self.waiter = ThreadPoolExecutor(1, thread_name_prefix="legato-ddp")


def ddp_state(*, compression: str | type[Compressor] | None = None, job: Job | None = None) -> DDPState:
    """The state to register with `ddp_hook`."""
    job = api.current(job)
    return DDPState(operations(job), job.name("ddp hook"), compressor_of(compression))


# `bucket` is a torch.distributed.GradBucket; torch refuses any other annotation, and not every torch has that class.
def ddp_hook(state: DDPState, bucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[no-untyped-def]
    """Average a bucket over all ranks."""
    buffer = bucket.buffer()
    compressed, context = state.compressor.compress(buffer)
    started = state.operations.allreduce(compressed, f"{state.name}/{bucket.index()}", Reduction(), in_place=True)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[buffer.device] if buffer.is_cuda else None
    )

    def wait(operation: Work[torch.Tensor]) -> None:
        try:
            average = state.compressor.decompress(operation.wait(), context)
            future.set_result(buffer if average is buffer else buffer.copy_(average))
        except BaseException as error:  # noqa: BLE001 - carried to the thread that runs backward
            future.set_exception(error)  # type: ignore[arg-type]  # torch's annotation says a result

    state.waiter.submit(wait, started)
    return future
