"""DistributedDataParallel over legato's engine: a drop-in for torch's, and a communication hook for torch's own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from legato.errors import ClosedError, InputError
from legato.job import Job
from legato.torch import api
from legato.torch.compat.handles import Work
from legato.torch.compat.joining import Attendance
from legato.torch.compat.operations import Operations, Reduction, operations
from legato.torch.compat.reducer import Reducer
from legato.torch.compression import Compressing, Compressor, compression_of, compressor_of
from legato.torch.scheduling.agreement import agree_on_model
from legato.torch.scheduling.attachments import owners_of
from legato.torch.scheduling.modules import Frozen
from legato.torch.scheduling.wrappers import averaged_twice
from legato.torch.sync.broadcast import broadcast_module, broadcast_tensors
from legato.torch.sync.synchronizer import Slot


class DistributedDataParallel(nn.Module):
    """A module whose gradients are averages over all ranks when `backward()` returns, for any optimizer.

    The arguments are torch's. Every parameter is a task of its own here, and which ones were used is found out in
    every step, so `bucket_cap_mb`, `find_unused_parameters`, `static_graph` and others have nothing left to say.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        compression: Compressing = None,
        job: Job | None = None,
    ) -> None:
        super().__init__()
        del output_device, dim, bucket_cap_mb, find_unused_parameters, check_reduction
        del gradient_as_bucket_view, static_graph
        if process_group is not None:
            raise InputError("process_group is torch's; legato's ranks are those of init(), give job= for another job")
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise InputError("no parameter of the module requires a gradient: there is nothing to average")
        self.module = module
        self.device_ids = list(device_ids or [])
        self.broadcast_buffers = broadcast_buffers
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self._ending = False
        self._attendance: Attendance | None = None
        self._reducer: Reducer | None = None
        self._has_ended = False
        self._frozen = Frozen(module.named_parameters(), "wrap the module again, on every rank")
        job = api.current(job)
        if job.size > 1:
            agree_on_model(job.group, job.name("model"), module)
            if init_sync:
                broadcast_module(job.group, job.name("start"), module)
            slots = [Slot(name, each) for name, each in module.named_parameters() if each.requires_grad]
            compressor, selection = compression_of(compression, job.settings.min_compress_bytes)
            self._reducer = Reducer(
                job.group, job.name("ddp"), slots, compressor, selection, submitted=self._expect_end
            )
            self._reducer.synchronising = False  # until a forward pass says so
            job.keep(self)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        syncs = torch.is_grad_enabled() and self.require_backward_grad_sync and self._reducer is not None
        refreshes = self.broadcast_buffers and self.require_forward_param_sync and self._reducer is not None
        if self._ending:  # a backward pass ended in an exception here: the others still wait for the rest of it
            assert self._reducer is not None
            self._reducer.abandon()
            self._ending = False
        root = 0
        if self._attendance is not None:
            root = self._attendance.report(syncs=syncs, refreshes=refreshes).first
        if refreshes:
            self._broadcast(self.module.buffers(), "buffers", root)
        if self.device_ids:
            inputs, keywords = _pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.to(self.device_ids[0]), (inputs, keywords)
            )
        if syncs:
            self._frozen.check()
            if owners_of(self.module):
                raise averaged_twice(self)
        output = self.module(*inputs, **keywords)
        self.require_forward_param_sync = syncs
        if syncs:
            assert self._reducer is not None
            self._reducer.synchronising = True
            self._watch(output, self._expect_end)
        elif self._has_ended:
            self._watch(output, _refuse)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes in here lead to backward passes that only accumulate; the next one outside averages all."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Train with different numbers of batches: who is through answers the others, and gets the model at the end.

        Averages are over all ranks, or over those that still train without `divide_by_initial_world_size`.
        """
        if self._reducer is None or not enable:
            yield
            return
        attendance = self._attendance = Attendance(
            self._reducer.group,
            f"{self._reducer.name}/attendance",
            divide_by_present=not divide_by_initial_world_size,
            throw=throw_on_early_termination,
        )
        try:
            yield
            self._answer_the_others(attendance)
        finally:
            self._attendance = None
        self._broadcast([*self.module.parameters(), *self.module.buffers()], "last", attendance.last)

    def synchronize(self) -> None:
        """Nothing: gradients are averages when backward() returns. BytePS's scripts ask for it."""

    def remove(self) -> None:
        """The job ends: the module still computes, but refuses to train alone."""
        if self._reducer is not None:
            self._reducer.remove()
            self._reducer = None
            self._has_ended = True

    def let_go(self) -> None:
        """The job is left at once, and what is under way is lost."""
        if self._reducer is not None:
            self._reducer.let_go()
            self._reducer = None
            self._has_ended = True

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle trains alone: the job and its ranks are this process's."""
        return {**self.__dict__, "_reducer": None, "_attendance": None, "_ending": False, "_has_ended": False}

    # ---- the end of a backward pass ----

    def _watch(self, output: Any, call: Callable[[], None]) -> None:
        """Notice a backward pass where it enters this module, however few parameters it comes to."""
        for tensor in _pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                tensor.register_hook(lambda _: call())

    def _expect_end(self) -> None:
        """Have `_end` called when this backward pass is through.

        Plain optimizers read `parameter.grad` right after backward() without asking anybody, so averages must be
        there when it returns; and only autograd's engine knows when the last gradient has been accumulated. Asked for
        at the first sign of a pass: inside a nested one (checkpointing) the callback would come at the nested end.
        """
        if not self._ending and self._reducer is not None and self._reducer.synchronising:
            self._ending = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end)

    def _end(self) -> None:
        self._ending = False
        assert self._reducer is not None
        self._reducer.finish(divide_by_present=self._attendance is not None and self._attendance.divide_by_present)
        self._reducer.synchronising = False

    # ---- other ranks ----

    def _broadcast(self, tensors: Iterable[torch.Tensor], what: str, root: int) -> None:
        assert self._reducer is not None
        with torch.no_grad():
            # The root is part of what a name means to the group.
            broadcast_tensors(self._reducer.group, f"{self._reducer.name}/{what} of rank {root}", tensors, root)

    def _answer_the_others(self, attendance: Attendance) -> None:
        """Follow the ranks that still train, until none does."""
        assert self._reducer is not None
        while (present := attendance.report(absent=True)).ranks:
            if present.refreshes:
                self._broadcast(self.module.buffers(), "buffers", present.first)
            if present.syncs:
                self._reducer.answer()


def _refuse() -> None:
    raise ClosedError(
        "the job of this DistributedDataParallel has ended, and nobody averages gradients any more; to train on, call "
        "legato.torch.init() and wrap the module again"
    )


class DDPState:
    """What the hook keeps between buckets; one for each model."""

    def __init__(self, operations: Operations, name: str, compressor: type[Compressor]) -> None:
        self.operations = operations
        self.name = name
        self.compressor = compressor
        # torch wants a future, and the engine's tasks have none: one thread waits for them, in the order of buckets.
        self.waiter = ThreadPoolExecutor(1, thread_name_prefix="legato-ddp")


def ddp_state(*, compression: str | type[Compressor] | None = None, job: Job | None = None) -> DDPState:
    """The state to register with the hook: `ddp_model.register_comm_hook(lg.ddp_state(), lg.ddp_hook)`."""
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
