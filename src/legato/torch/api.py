"""What a training script calls: join the job, and the one line that schedules a model."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import nn

from legato.core import Plan, Policy
from legato.current import CurrentJob, Member
from legato.errors import InputError
from legato.exchange.opening import check_alone, plan_of, size_of
from legato.job import Job
from legato.torch.composition import check_is_new, wire
from legato.torch.compression import Compressing, compression_of
from legato.torch.relaxed.sync_mode import MakeOptimizer, SyncMode
from legato.torch.relaxed.weights import WeightSchedule
from legato.torch.scheduling.attachments import allow_step, is_left_alone, leave_alone, owners_of
from legato.torch.scheduling.hooks import Schedule
from legato.torch.scheduling.metrics import Metrics
from legato.torch.scheduling.shards import mesh_of
from legato.torch.scheduling.wrappers import check_unwrapped
from legato.torch.sync.broadcast import Stateful
from legato.torch.sync.options import SyncOptions
from legato.tuning.tuner import TUNERS

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Model = TypeVar("Model", bound=nn.Module)

_current = CurrentJob("legato.torch", Member)
begin = _current.begin
init, shutdown, is_initialized = _current.init, _current.shutdown, _current.is_initialized
rank, size, local_rank, local_size = _current.rank, _current.size, _current.local_rank, _current.local_size


def current(job: Job | None = None) -> Job:
    """The job that is meant: the one given, or what `init` started."""
    return _current.member.job if job is None else job


def on_membership(callback: Callable[[int, int, int, tuple[int, ...]], None], *, job: Job | None = None) -> None:
    """Have `callback(size, rank, joined, lost)` called between two steps after the workers of an elastic job have
    changed: how many there are, which one this is, how many are new, and which ranks of before are gone
    (docs/elastic.md)."""
    current(job).on_membership(lambda change: callback(change.size, change.rank, change.joined, change.lost))


def num_steps(model: nn.Module) -> int:
    """The steps that a scheduled model has taken, in an elastic job also before this rank was in it."""
    made = _made_for(model)
    return made[0].num_steps if made and isinstance(made[0], Schedule) else 0


def schedule(
    model: Model,
    optimizer: Optimizer,
    *,
    policy: str | Policy | None = None,
    partition_bytes: int | str | None = None,
    credit_bytes: int | str | None = None,
    plan: str | os.PathLike[str] | Plan | None = None,
    transport: str = "auto",
    tuner: str | None = None,
    compression: Compressing = None,
    min_compress_bytes: int | None = None,
    passes_per_step: int = 1,
    state: Sequence[Stateful] = (),
    staleness: int | None = None,
    local_steps: int = 1,
    outer: MakeOptimizer | None = None,
    backups: int = 0,
    job: Job | None = None,
) -> tuple[Model, Optimizer]:
    """Overlap the synchronisation of gradients with backward and with the next forward: the one line.

    Parameters, buffers and the optimizer's state become those of rank 0. The same objects come back; train as before.
    So does the `state` of other objects that have a `state_dict`: LR schedulers, gradient scalers (docs/elastic.md).
    `compression` says how gradients travel: "topk:0.01+ef", {"embed.*": "none", "*": "fp16"}, or BytePS's parameters
    (docs/compression.md). `policy` is "auto", the name of a policy, or one of your own (docs/policies.md).
    `partition_bytes` ("4MB") and `credit_bytes` are the largest part and what may be in flight at once, in place of the
    policy's; `plan` is a whole plan, or the file that `legato tune --out` has written. `tuner` looks for better plans
    while training runs: "twin", "autobyte", "bayes", "grid" or "off"; by default the twin, unless you say what to do.
    `transport` is "native" or "c10d"; with "auto", the first steps decide where there are both (docs/tuning.md).

    Ranks wait for each other in every step, unless (docs/asynchrony.md) a `staleness` lets them be so many steps ahead
    of the slowest, or they train alone for `local_steps` steps before they meet; `outer` makes the optimizer that then
    takes a step for all. With `backups` a step goes on without the gradients of the last so many ranks.

    Of a model that `fully_shard` has spread over the ranks of a host, each shard is averaged across hosts
    (docs/pytorch.md).
    """
    if tuner not in (None, "off", *TUNERS):
        raise InputError(f"tuner {tuner!r} is unknown; accepted: {', '.join(TUNERS)}, off")
    job = current(job)
    if tuner is None:
        tuner = job.settings.tuner
    if staleness is None:
        staleness = job.settings.staleness
    mode = SyncMode(staleness=staleness, local_steps=local_steps, outer=outer, backups=backups)
    allow_step(optimizer)
    if job.size == 1:
        leave_alone(model)
        if job.monitor is not None:
            job.monitor.describe("one worker has nothing to synchronise, and its steps are not watched")
        return model, optimizer
    check_unwrapped(model)
    check_is_new(model, optimizer)
    if min_compress_bytes is None:
        min_compress_bytes = job.settings.min_compress_bytes
    compressor, selection = compression_of(compression, min_compress_bytes)
    check_alone(plan, policy, partition_bytes, credit_bytes)
    options = SyncOptions(
        prefix=job.name("gradients"),
        policy=job.settings.policy if policy is None else policy,
        partition_bytes=size_of("partition_bytes", partition_bytes, job.settings.partition_bytes),
        credit_bytes=size_of("credit_bytes", credit_bytes, job.settings.credit_bytes),
        fusion_bytes=job.settings.fusion_bytes,
        plan=plan_of(plan),
        compressor=compressor,
        selection=selection,
        backups=mode.backups,
    )
    wire(
        job,
        model,
        optimizer,
        mode,
        options,
        transport=transport,
        tuner=tuner,
        passes_per_step=passes_per_step,
        state=tuple(state),
    )
    return model, optimizer


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Backward passes in here only accumulate, as in torch's DDP."""
    with ExitStack() as all_quiet:
        for made in _made_for(model):
            all_quiet.enter_context(made.no_sync())
        yield


def current_plan(model: nn.Module) -> Plan:
    """What a scheduled model follows: buckets, order, parts, credit and barriers."""
    if not _made_for(model):
        raise InputError("this rank shares no gradients with others, so there is no plan")
    return Schedule.of(model).synchronizer.plan


def watch_gradients(model: nn.Module, *, batch_size: float = 1, decay: float = 0.99) -> None:
    """From the next step on, measure what `metrics` tells, at the cost of looking at every gradient twice.

    Every rank calls it, between two steps. `batch_size` is the samples of one rank in one step, and `decay` that of the
    moving averages. The model has one optimizer, and gradients travel once a step.
    """
    _watched(model).watch(batch_size=batch_size, decay=decay)


def metrics(model: nn.Module) -> Metrics:
    """The norm and the noise scale of the gradients since `watch_gradients`: docs/pytorch.md.

    Every rank calls it after the same step. It waits for the averages of that step: read it now and then.
    """
    return _watched(model).metrics()


def flush(model: nn.Module) -> None:
    """Apply updates that are still due, before weights are read in a way legato cannot see (`p.data` of one layer)."""
    for made in _made_for(model):
        made.flush()


def unschedule(model: nn.Module, *, job: Job | None = None) -> None:
    """Apply what is still due and leave the model and its optimizers as they were before `schedule`."""
    for made in reversed(_made_for(model)):
        made.take_off()
        current(job).forget(made)


def _watched(model: nn.Module) -> Schedule:
    if _current and current().is_elastic:
        raise InputError("gradients of an elastic job cannot be watched: ranks come and go between two measurements")
    if mesh_of(model.parameters()) is not None:
        raise InputError("gradients of a sharded model cannot be watched: a rank has but a part of each")
    made = _made_for(model)
    if len(made) != 1 or not isinstance(made[0], Schedule):
        raise InputError(
            "gradients are watched where all are averaged in every step: with other ranks, one optimizer, and without "
            "staleness or local_steps"
        )
    return made[0]


def _made_for(model: nn.Module) -> list[Schedule | WeightSchedule]:
    """What `schedule` has attached to a model, for each of its optimizers; nothing where there was nothing to do."""
    made = [owner for owner in owners_of(model) if isinstance(owner, Schedule | WeightSchedule)]
    if not made and is_left_alone(model):
        return []
    return made or [Schedule.of(model)]
