"""What a training script calls: join the job, and the one line that schedules a model."""

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from legato.compression import Selection
from legato.errors import InputError, LegatoError
from legato.job import Job
from legato.settings import read_settings
from legato.torch.asynchronous import Asynchronous
from legato.torch.backups import attach_left_out
from legato.torch.broadcast import broadcast_module, broadcast_optimizer
from legato.torch.buffers import Late, NativeSynchronizer
from legato.torch.c10d import C10dSynchronizer
from legato.torch.compression import Compressing, Compressor, compression_of
from legato.torch.coupling import Coupling, MakeOptimizer, agree_on
from legato.torch.hooks import Schedule
from legato.torch.inert import owner_of
from legato.torch.local_steps import LocalSteps
from legato.torch.meeting import meet_over_process_group
from legato.torch.modules import trained
from legato.torch.process_group import ProcessGroup, ensure_world
from legato.torch.static_plan import StaticConfig
from legato.torch.synchronizer import Slot, Synchronizer
from legato.torch.tuning import LiveTuning
from legato.torch.weights import Exchange, WeightSchedule
from legato.transports.group import NativeGroup
from legato.tuning.tuners import TUNERS

_log = logging.getLogger(__name__)

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Model = TypeVar("Model", bound=nn.Module)

NATIVE_POLICIES = ("auto", "bytescheduler", "fifo")
DEFAULT_TUNER = "twin"

_current: list[Job] = []
"""The job of functions that are not given one: what `init` started last."""


def init(*, rank: int | None = None, num_workers: int | None = None, conductor: str | None = None) -> Job:
    """Join the job that the environment describes (torchrun, mpirun, srun, BytePS), or stand alone without one.

    What is given here wins over the environment (docs/environment.md). Calling it again returns the same job.
    """
    if _current:
        return _current[-1]
    job = Job(read_settings(os.environ, rank=rank, num_workers=num_workers, conductor=conductor))
    _current.append(job)
    atexit.register(_shutdown_at_exit)
    return job


def shutdown(*, now: bool = False) -> None:
    """Apply the last step and leave the job; with `now`, only leave. `init` can be called again afterwards."""
    atexit.unregister(_shutdown_at_exit)
    if _current:
        _current.pop().close(now=now)


def _shutdown_at_exit() -> None:
    """A script that ends by an exception does not wait for a step that the others may never finish."""
    shutdown(now=hasattr(sys, "last_value"))


def is_initialized() -> bool:
    return bool(_current)


def current(job: Job | None = None) -> Job:
    """The job that is meant: the one given, or what `init` started."""
    if job is not None:
        return job
    if not _current:
        raise LegatoError("legato is not initialised; call legato.torch.init() first")
    return _current[-1]


def rank() -> int:
    return current().rank


def size() -> int:
    return current().size


def local_rank() -> int:
    return current().settings.local_rank


def local_size() -> int:
    return current().settings.local_size


def schedule(
    model: Model,
    optimizer: Optimizer,
    *,
    policy: str = "auto",
    transport: str = "auto",
    tuner: str | None = None,
    compression: Compressing = None,
    min_compress_bytes: int | None = None,
    passes_per_step: int = 1,
    staleness: int | None = None,
    local_steps: int = 1,
    outer: MakeOptimizer | None = None,
    backups: int = 0,
    job: Job | None = None,
) -> tuple[Model, Optimizer]:
    """Overlap the synchronisation of gradients with backward and with the next forward: the one line.

    Parameters, buffers and the optimizer's state become those of rank 0. The same objects come back; train as before.
    `compression` says how gradients travel: "topk:0.01+ef", {"embed.*": "none", "*": "fp16"}, or BytePS's parameters
    (docs/compression.md). `tuner` looks for better plans while training runs: "twin", "autobyte", "bayes", "grid" or
    "off"; by default the twin where `policy` is "auto" (docs/tuning.md).

    Ranks wait for each other in every step, unless (docs/asynchrony.md) a `staleness` lets them be so many steps ahead
    of the slowest, or they train alone for `local_steps` steps before they meet; `outer` makes the optimizer that then
    takes a step for all. With `backups` a step goes on without the gradients of the last so many ranks.
    """
    if tuner not in (None, "off", *TUNERS):
        raise InputError(f"tuner {tuner!r} is unknown; accepted: {', '.join(TUNERS)}, off")
    job = current(job)
    if staleness is None:
        staleness = job.settings.staleness
    coupling = Coupling(staleness=staleness, local_steps=local_steps, outer=outer, backups=backups)
    if job.size == 1:
        return model, optimizer
    if min_compress_bytes is None:
        min_compress_bytes = job.settings.min_compress_bytes
    compressor, selection = compression_of(compression, min_compress_bytes)
    group = _group(job, transport)
    if isinstance(group, ProcessGroup):
        meet_over_process_group(job)
    coupling.check(group, compressor, selection)
    agree_on(group, job.name("coupling"), coupling)
    broadcast_module(group, job.name("start"), model)
    broadcast_optimizer(group, job.name("start"), optimizer)
    prefix = job.name("gradients")

    late = attach_left_out(model).note if coupling.backups else None

    def synchronizer(slots: Sequence[Slot]) -> Synchronizer:
        return _synchronizer(job, group, prefix, slots, policy, compressor, selection, coupling.backups, late)

    made: Schedule | WeightSchedule
    if coupling.averages_gradients:
        made = Schedule(
            model, optimizer, synchronizer, timeline=job.timeline, prefix=prefix, passes_per_step=passes_per_step
        )
    else:
        slots = [Slot(name, parameter) for _, name, parameter in trained(model, optimizer)]
        exchange: Exchange
        if coupling.staleness:
            assert isinstance(group, NativeGroup)
            exchange = Asynchronous(group, prefix, slots, coupling.staleness)
        else:
            exchange = LocalSteps(synchronizer(slots), slots, coupling.local_steps, coupling.outer)
        made = WeightSchedule(model, optimizer, exchange)
    if tuner is not None or policy == "auto":
        _tune(job, group, made, policy, tuner, selection, coupling)
    job.keep(made)
    return model, optimizer


def _tune(
    job: Job,
    group: NativeGroup | ProcessGroup,
    made: Schedule | WeightSchedule,
    policy: str,
    tuner: str | None,
    selection: Selection,
    coupling: Coupling,
) -> None:
    """Have a schedule tuned where it can follow another plan; whoever asked for a tuner hears why it cannot."""
    if tuner == "off":
        return
    if isinstance(group, ProcessGroup):
        reason = "over c10d the plan is static"
    elif isinstance(made, WeightSchedule):
        reason = "ranks that step alone wait for no gradients"
    elif coupling.backups:
        reason = "who comes too late is left out part by part, so other parts would change the results"
    elif policy == "fifo":
        reason = "policy 'fifo' leaves nothing to choose"
    elif selection.schemes:
        reason = "codecs work part by part, so other parts would change the results"
    elif any(slot.parameter.is_cuda for slot in made.slots):
        reason = "layers that an accelerator computes are not timed"
    elif any(isinstance(each, Schedule) for each in job.kept):
        reason = "plans count the steps of the job's first schedule, and this is another one"
    else:
        assert isinstance(made.synchronizer, NativeSynchronizer)
        names = [slot.name for slot in made.slots]
        made.tune(LiveTuning(group, made.synchronizer, names, tuner or DEFAULT_TUNER))
        return
    if tuner is not None:
        _log.warning("tuner %r is off: %s", tuner, reason)


def _group(job: Job, transport: str) -> NativeGroup | ProcessGroup:
    """What moves tensors: `auto` is native, except where the user trains over NCCL."""
    if transport == "auto":
        over_nccl = dist.is_available() and dist.is_initialized() and dist.get_backend() == dist.Backend.NCCL
        transport = "c10d" if over_nccl else "native"
    if transport == "native":
        return job.group
    if transport == "c10d":
        ensure_world(job)
        return ProcessGroup(job.settings.timeout_s)
    raise InputError(f"transport {transport!r} is unknown; accepted: auto, native, c10d")


def _synchronizer(
    job: Job,
    group: NativeGroup | ProcessGroup,
    prefix: str,
    slots: Sequence[Slot],
    policy: str,
    compressor: type[Compressor],
    selection: Selection,
    backups: int,
    late: Late | None,
) -> Synchronizer:
    if isinstance(group, ProcessGroup):
        if selection.schemes:
            raise InputError("codecs need transport native; over c10d, compression is none, fp16 or bf16")
        config = StaticConfig(policy=policy)
        return C10dSynchronizer(
            group, prefix, slots, compressor, config=config, timeline=job.timeline, timeout_s=job.settings.timeout_s
        )
    if policy not in NATIVE_POLICIES:
        raise InputError(f"policy {policy!r} does not go with native; accepted: {', '.join(NATIVE_POLICIES)}")
    ordered = policy != "fifo"
    return NativeSynchronizer(group, prefix, slots, compressor, selection, ordered=ordered, backups=backups, late=late)


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Backward passes in here only accumulate, as in torch's DDP."""
    with _made_for(model).no_sync():
        yield


def flush(model: nn.Module) -> None:
    """Apply updates that are still due, before weights are read in a way legato cannot see (`p.data` of one layer)."""
    _made_for(model).flush()


def unschedule(model: nn.Module, *, job: Job | None = None) -> None:
    """Apply what is still due and leave the model and its optimizer as they were before `schedule`."""
    made = _made_for(model)
    made.remove()
    current(job).forget(made)


def _made_for(model: nn.Module) -> Schedule | WeightSchedule:
    """What `schedule` has attached to a model."""
    owner = owner_of(model)
    return owner if isinstance(owner, WeightSchedule) else Schedule.of(model)
