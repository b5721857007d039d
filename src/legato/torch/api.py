"""What a training script calls: join the job, and the one line that schedules a model."""

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from legato.core import Plan, Policy
from legato.errors import InputError, LegatoError, PlanError
from legato.job import Job
from legato.settings import read_settings
from legato.torch.compression import Compressing, compression_of
from legato.torch.relaxed.asynchronous import Asynchronous
from legato.torch.relaxed.backups import attach_left_out
from legato.torch.relaxed.local_steps import LocalSteps
from legato.torch.relaxed.sync_mode import MakeOptimizer, SyncMode, agree_on
from legato.torch.relaxed.weights import Exchange, WeightSchedule
from legato.torch.scheduling.agreement import agree_on_model
from legato.torch.scheduling.attachments import allow_step, bare, is_covered, owners_of
from legato.torch.scheduling.divergence import Comparison
from legato.torch.scheduling.hooks import Schedule
from legato.torch.scheduling.modules import sparse_weights, trained
from legato.torch.scheduling.wrappers import check_unwrapped
from legato.torch.sync.broadcast import broadcast_module, broadcast_optimizer
from legato.torch.sync.link_speed import Speed
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.options import Group, SyncOptions, candidate_of, group_of, rival_of, transport_of
from legato.torch.sync.process_group import ProcessGroup, group_apart, meet_over_process_group
from legato.torch.sync.switching import Switching
from legato.torch.sync.synchronizer import Slot, Synchronizer
from legato.torch.tuning.clock import clock_of
from legato.torch.tuning.live import LiveTuning, Tuning
from legato.torch.tuning.transport_trial import TransportTrial
from legato.transports.native.group import NativeGroup
from legato.tuning.candidate import NATIVE
from legato.tuning.tuners import TUNERS
from legato.units import parse_bytes

_log = logging.getLogger(__name__)

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Model = TypeVar("Model", bound=nn.Module)

DEFAULT_TUNER = "twin"

_current: list[Job] = []
"""The job of functions that are not given one: what `init` started last."""


def init(*, rank: int | None = None, num_workers: int | None = None, conductor: str | None = None) -> Job:
    """Join the job that the environment describes (torchrun, mpirun, srun, horovodrun, BytePS), or stand alone.

    What is given here wins over the environment (docs/environment.md). Calling it again returns the same job.
    """
    if _current:
        return _current[-1]
    settings = read_settings(os.environ, rank=rank, num_workers=num_workers, conductor=conductor)
    job = Job(settings)
    _log.info("rank %d of %d, told by %s", job.rank, job.size, settings.told_by)
    if settings.overlooked:
        names = ", ".join(settings.overlooked)
        _log.warning("this process trains alone, although a launcher seems to have set %s: where is its rank?", names)
    _current.append(job)
    atexit.register(_shutdown_at_exit)
    return job


def shutdown(*, now: bool = False) -> None:
    """Apply the last step and leave the job; with `now`, only leave. `init` can be called again afterwards."""
    atexit.unregister(_shutdown_at_exit)
    if _current:
        _current.pop().close(now=now)


def _shutdown_at_exit() -> None:
    """A script that ends by an exception does not wait for a step that the others may never finish.

    `sys.exit` cannot be told from the script's end here. Whoever exits early leaves as if it had finished, and the
    others hear of it when they wait for a step that it has not begun.
    """
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
    policy: str | Policy | None = None,
    partition_bytes: int | str | None = None,
    credit_bytes: int | str | None = None,
    plan: str | os.PathLike[str] | Plan | None = None,
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
    (docs/compression.md). `policy` is "auto", the name of a policy, or one of your own (docs/policies.md).
    `partition_bytes` ("4MB") and `credit_bytes` are the largest part and what may be in flight at once, in place of the
    policy's; `plan` is a whole plan, or the file that `legato tune --out` has written. `tuner` looks for better plans
    while training runs: "twin", "autobyte", "bayes", "grid" or "off"; by default the twin, unless you say what to do.
    `transport` is "native" or "c10d"; with "auto", the first steps decide where there are both (docs/tuning.md).

    Ranks wait for each other in every step, unless (docs/asynchrony.md) a `staleness` lets them be so many steps ahead
    of the slowest, or they train alone for `local_steps` steps before they meet; `outer` makes the optimizer that then
    takes a step for all. With `backups` a step goes on without the gradients of the last so many ranks.
    """
    if tuner not in (None, "off", *TUNERS):
        raise InputError(f"tuner {tuner!r} is unknown; accepted: {', '.join(TUNERS)}, off")
    job = current(job)
    if staleness is None:
        staleness = job.settings.staleness
    coupling = SyncMode(staleness=staleness, local_steps=local_steps, outer=outer, backups=backups)
    allow_step(optimizer)
    if job.size == 1:
        return model, optimizer
    check_unwrapped(model)
    _check_is_new(model, optimizer)
    if min_compress_bytes is None:
        min_compress_bytes = job.settings.min_compress_bytes
    compressor, selection = compression_of(compression, min_compress_bytes)
    on_cuda = any(parameter.is_cuda for parameter in model.parameters())
    group = group_of(job, transport, on_cuda=on_cuda)
    if isinstance(group, ProcessGroup):
        meet_over_process_group(job)
    coupling.check(group, compressor, selection)
    agree_on(group, job.name("coupling"), coupling)
    agree_on_model(group, job.name("model"), model)
    with Speed(group) as speed:
        broadcast_module(group, job.name("start"), model)
    broadcast_optimizer(group, job.name("start"), optimizer)
    if plan is not None and (policy is not None or partition_bytes is not None or credit_bytes is not None):
        raise InputError("plan says it all; give it alone, without policy, partition_bytes and credit_bytes")
    prefix = job.name("gradients")
    carriage = SyncOptions(
        job=job,
        prefix=prefix,
        policy=job.settings.policy if policy is None else policy,
        partition_bytes=_size("partition_bytes", partition_bytes, job.settings.partition_bytes),
        credit_bytes=_size("credit_bytes", credit_bytes, job.settings.credit_bytes),
        fusion_bytes=job.settings.fusion_bytes,
        plan=plan if plan is None or isinstance(plan, Plan) else _read_plan(plan),
        bytes_per_s=speed.bytes_per_s,
        compressor=compressor,
        selection=selection,
        backups=coupling.backups,
        late=attach_left_out(model).note if coupling.backups else None,
    )
    if not coupling.averages_gradients:
        if coupling.staleness and (carriage.is_told or carriage.policy != "auto"):
            _log.warning("policy, sizes and plan are not followed here: running totals follow no plan")
        job.keep(_weight_schedule(group, model, optimizer, carriage, coupling))
        if tuner not in (None, "off"):
            _log.warning("tuner %r is off: ranks that step alone wait for no gradients", tuner)
        return model, optimizer
    rival = None
    if transport == "auto" and tuner != "off" and carriage.suits_any_transport and not sparse_weights(model):
        rival = rival_of(job, group, on_cuda=on_cuda)

    # Ranks that a step need not wait for are not waited for here either.
    compares = job.settings.check is not False and not coupling.backups

    def synchronizer(slots: Sequence[Slot]) -> Synchronizer:
        return carriage.over(group, slots) if rival is None else carriage.over_either(group, rival, slots)

    made = Schedule(
        model,
        optimizer,
        synchronizer,
        timeline=job.timeline,
        prefix=prefix,
        passes_per_step=passes_per_step,
        make_comparison=partial(_comparison, job, group, rival) if compares else None,
    )
    if (tuning := _tuning(job, group, rival, made, carriage, tuner)) is not None:
        made.tune(tuning)
    job.keep(made)
    return model, optimizer


def _read_plan(path: str | os.PathLike[str]) -> Plan:
    try:
        return Plan.from_json(Path(path).read_text())
    except (OSError, UnicodeDecodeError, PlanError) as error:
        raise InputError(f"plan {os.fspath(path)}: {error}") from None


def _size(name: str, given: int | str | None, default: int | None) -> int | None:
    """A size that the code, or else the environment, asks for."""
    if given is None:
        return default
    try:
        num_bytes = parse_bytes(given) if isinstance(given, str) else given
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 1:
        raise InputError(f"{name} is {given!r}; accepted is a size such as 262144, 256KiB or 4MB")
    return num_bytes


def _weight_schedule(
    group: Group, model: nn.Module, optimizer: torch.optim.Optimizer, carriage: SyncOptions, coupling: SyncMode
) -> WeightSchedule:
    """Of ranks that step alone, and whose weights travel."""
    slots = [Slot(name, parameter) for _, name, parameter in trained(model, optimizer)]
    exchange: Exchange
    if coupling.staleness:
        assert isinstance(group, NativeGroup)
        exchange = Asynchronous(group, carriage.prefix, slots, coupling.staleness)
    else:
        exchange = LocalSteps(carriage.over(group, slots), slots, coupling.local_steps, coupling.outer)
    return WeightSchedule(model, optimizer, exchange, slots)


def _check_is_new(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A model may have several optimizers, but each parameter has one, and is averaged once."""
    if is_covered(optimizer):
        raise InputError("this optimizer is scheduled already; call legato.torch.unschedule(model) first")
    owners = [owner for module in bare(model).modules() for owner in owners_of(module)]
    owned = {slot.parameter for owner in owners for slot in owner.slots}
    for _, name, parameter in trained(model, optimizer):
        if parameter in owned:
            raise InputError(
                f"parameter {name!r} is scheduled already, with another optimizer; give each parameter to one of them, "
                "or call legato.torch.unschedule(model) first"
            )


def _comparison(job: Job, group: Group, rival: Group | None, slots: Sequence[Slot]) -> Comparison:
    """Of weights, over connections on which gradients cannot get in between."""
    native = next((each for each in (group, rival) if isinstance(each, NativeGroup)), None)
    apart = group_apart(job) if native is None else native
    return Comparison(apart, job.name("weights"), slots, always=bool(job.settings.check))


def _tuning(
    job: Job, group: Group, rival: Group | None, made: Schedule, carriage: SyncOptions, tuner: str | None
) -> Tuning | None:
    """What finds better plans for a schedule, and before that the better transport."""
    plans: Tuning | None = None
    # On an accelerator whoever wants it asks for it: only tests have measured it there.
    by_default = (
        carriage.policy == "auto" and not carriage.is_told and not any(slot.parameter.is_cuda for slot in made.slots)
    )
    if tuner not in (None, "off") or (tuner is None and by_default):
        found = _live_tuning(group, made, carriage, tuner or DEFAULT_TUNER)
        if isinstance(found, LiveTuning):
            plans = found
        elif tuner is not None:
            _log.warning("tuner %r is off: %s", tuner, found)
    return plans if rival is None else _trial(job, group, rival, made, plans)


def _live_tuning(group: Group, made: Schedule, carriage: SyncOptions, tuner: str) -> LiveTuning | str:
    """It, or why this schedule cannot follow another plan."""
    if isinstance(group, ProcessGroup):
        return "over c10d the plan is static"
    if carriage.backups:
        return "who comes too late is left out part by part, so other parts would change the results"
    if carriage.plan is not None or carriage.policy == "fifo":
        return "a given plan, or policy 'fifo', leaves nothing to choose"
    if carriage.selection.schemes:
        return "codecs work part by part, so other parts would change the results"
    if len({slot.parameter.device for slot in made.slots}) > 1:
        return "its parameters are on several devices, whose clocks differ"
    synchronizer = made.synchronizer
    if isinstance(synchronizer, Switching):
        synchronizer = synchronizer.over(NATIVE)
    assert isinstance(synchronizer, NativeSynchronizer)
    if not synchronizer.is_planned:
        return "plans count the steps of the job's first schedule, and this is another one"
    return LiveTuning(group, synchronizer, [slot.name for slot in made.slots], tuner, clock_of(made.slots))


def _trial(job: Job, group: Group, rival: Group, made: Schedule, then: Tuning | None) -> TransportTrial:
    """Of the rival's transport against the one that the schedule begins with."""
    switching = made.synchronizer
    assert isinstance(switching, Switching)
    native = group if isinstance(group, NativeGroup) else rival
    assert isinstance(native, NativeGroup)
    return TransportTrial(
        native,
        job.name("trial"),
        switching,
        standing=candidate_of(switching.over(transport_of(group))),
        rival=candidate_of(switching.over(transport_of(rival))),
        then=then,
    )


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Backward passes in here only accumulate, as in torch's DDP."""
    with ExitStack() as all_quiet:
        for made in _made_for(model):
            all_quiet.enter_context(made.no_sync())
        yield


def current_plan(model: nn.Module) -> Plan:
    """What a scheduled model follows: buckets, order, parts, credit and barriers."""
    return Schedule.of(model).synchronizer.plan


def flush(model: nn.Module) -> None:
    """Apply updates that are still due, before weights are read in a way legato cannot see (`p.data` of one layer)."""
    for made in _made_for(model):
        made.flush()


def unschedule(model: nn.Module, *, job: Job | None = None) -> None:
    """Apply what is still due and leave the model and its optimizers as they were before `schedule`."""
    for made in reversed(_made_for(model)):
        made.take_off()
        current(job).forget(made)


def _made_for(model: nn.Module) -> list[Schedule | WeightSchedule]:
    """What `schedule` has attached to a model, for each of its optimizers."""
    made = [owner for owner in owners_of(model) if isinstance(owner, Schedule | WeightSchedule)]
    return made or [Schedule.of(model)]
