"""The composition root of a schedule: from what was asked for to what runs."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from legato.errors import InputError
from legato.job import Job
from legato.live import Monitor
from legato.live.recorder import Queue
from legato.torch.relaxed.asynchronous import Asynchronous
from legato.torch.relaxed.backups import attach_left_out
from legato.torch.relaxed.local_steps import LocalSteps
from legato.torch.relaxed.sync_mode import SyncMode, agree_on
from legato.torch.relaxed.weights import Exchange, WeightSchedule
from legato.torch.scheduling.agreement import agree_on_model
from legato.torch.scheduling.attachments import bare, is_covered, leave_alone, owners_of
from legato.torch.scheduling.divergence import Comparison
from legato.torch.scheduling.handover import Handover
from legato.torch.scheduling.hooks import Schedule
from legato.torch.scheduling.modules import sparse_weights, trained
from legato.torch.scheduling.nonfinite import NonFinite
from legato.torch.scheduling.shards import replicas, shard_mesh
from legato.torch.sync.broadcast import (
    Stateful,
    broadcast_module,
    broadcast_optimizer,
    broadcast_states,
)
from legato.torch.sync.elastic import ElasticSynchronizer
from legato.torch.sync.link_speed import LinkSpeed
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.options import SyncOptions
from legato.torch.sync.process_group import Group
from legato.torch.sync.routes import (
    ElasticRoute,
    InHostRoute,
    NativeRoute,
    Route,
    candidate_of,
    hosts_of,
    rival_of,
    route_of,
)
from legato.torch.sync.switching import Switching
from legato.torch.sync.synchronizer import Slot, Synchronizer
from legato.torch.tuning.clock import clock_of
from legato.torch.tuning.live import LiveTuning, Tuning
from legato.torch.tuning.pace import Pace
from legato.torch.tuning.probe import Probe
from legato.torch.tuning.transport_trial import TransportTrial
from legato.transports.native.group import NativeGroup
from legato.tuning.candidate import C10D, NATIVE

_log = logging.getLogger(__name__)

DEFAULT_TUNER = "twin"


def wire(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    mode: SyncMode,
    options: SyncOptions,
    *,
    transport: str,
    tuner: str | None,
    passes_per_step: int,
    state: Sequence[Stateful],
) -> None:
    """Agree with the other ranks, take rank 0's weights, and attach what synchronises the model from now on."""
    if job.is_elastic:
        _check_goes_with_elastic(job, model, optimizer, mode, options, transport)
        _wire_elastic(job, model, optimizer, mode, options, passes_per_step=passes_per_step, state=state)
        return
    if job.settings.stragglers == "evict":
        raise InputError(
            "LEGATO_STRAGGLERS=evict is for elastic jobs (LEGATO_ELASTIC): any other ends with its first rank"
        )
    on_cuda = any(parameter.is_cuda for parameter in model.parameters())
    mesh = shard_mesh(model, optimizer)
    if mesh is not None:
        _check_goes_with_shards(mode, transport, job.settings.nonfinite)
        transport = NATIVE
    if job.settings.in_host:
        _check_goes_in_host(job, model, mode, options, transport, is_sharded=mesh is not None)
        transport = NATIVE
    route = route_of(job, transport, on_cuda=on_cuda)
    mode.check(route, options.compressor, options.selection)
    policy = job.settings.nonfinite
    words = mode.words() + ("" if policy == "pass" else f", LEGATO_NONFINITE={policy}") + _words_of(state)
    words += ", LEGATO_IN_HOST=1" * job.settings.in_host
    agree_on(route.group, job.name("mode"), words)
    agree_on_model(route.group, job.name("model"), model)
    if mesh is not None:
        group = replicas(job, mesh)
        if group is None:
            _log.info("every rank has other shards of this model: FSDP averages its gradients, and legato does nothing")
            leave_alone(model)
            return
        route = NativeRoute(group)
    with LinkSpeed(route.bytes_sent) as speed:
        broadcast_module(route.group, job.name("start"), model)
    broadcast_optimizer(route.group, job.name("start"), optimizer)
    broadcast_states(route.group, job.name("start"), state)
    late = attach_left_out(model).note if mode.backups else None
    options = replace(options, bytes_per_s=speed.bytes_per_s, late=late)
    if mode.averages_gradients:
        rival = None
        if transport == "auto" and tuner != "off" and options.suits_any_transport and not sparse_weights(model):
            rival = rival_of(job, route, on_cuda=on_cuda)
        routes = [route] if rival is None else [route, rival]
        if job.settings.in_host:
            routes = [_in_host(job, model, optimizer)]
        job.keep(_gradient_schedule(job, model, optimizer, options, routes, tuner, passes_per_step))
        return
    if policy != "pass":
        _log.warning("LEGATO_NONFINITE is not followed here: ranks that step alone average no gradients")
    if mode.staleness and (options.is_told or options.policy != "auto"):
        _log.warning("policy, sizes and plan are not followed here: running totals follow no plan")
    if tuner not in (None, "off"):
        _log.warning("tuner %r is off: ranks that step alone wait for no gradients", tuner)
    if job.monitor is not None:
        job.monitor.describe(f"{mode.words()}: ranks step alone, and their steps are not watched")
    job.keep(_weight_schedule(job, model, optimizer, mode, options, route))


def _check_goes_in_host(
    job: Job, model: nn.Module, mode: SyncMode, options: SyncOptions, transport: str, *, is_sharded: bool
) -> None:
    """Whether something was asked for that sums in the host lack."""
    reason = None
    if is_sharded:
        reason = "a sharded model: torch sums its gradients in the host already"
    elif transport == C10D:
        reason = "transport='c10d'; accepted are native and auto"
    elif not mode.averages_gradients or mode.backups:
        reason = f"{mode.words()}: ranks of a host wait for each other in every step"
    elif options.selection.schemes:
        reason = "codecs, which work on gradients, not on shares; compression is none, fp16 or bf16"
    elif options.plan is not None:
        reason = "a given plan, which is one of gradients, not of shares"
    elif sparse_weights(model):
        reason = "sparse gradients; use sparse=False"
    elif any(isinstance(kept, Schedule) for kept in job.kept):
        # Ranks may fill buckets of two in different orders, and operations of two groups can block each other.
        reason = "a second schedule; give all parameters to one optimizer"
    elif job.settings.num_servers:
        reason = f"LEGATO_SERVERS={job.settings.num_servers}: shares are summed by the ranks that have them"
    if reason is not None:
        raise InputError(f"LEGATO_IN_HOST=1 does not go with {reason}")


def _in_host(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> InHostRoute:
    """The route by which the ranks of a host sum first."""
    hosts = hosts_of(job, {parameter.device for _, _, parameter in trained(model, optimizer)})
    if isinstance(hosts, str):
        raise InputError(f"LEGATO_IN_HOST=1 does not go with {hosts}")
    return InHostRoute(job, hosts)


def _wire_elastic(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    mode: SyncMode,
    options: SyncOptions,
    *,
    passes_per_step: int,
    state: Sequence[Stateful],
) -> None:
    """Of a job whose workers come and go. Newcomers do what follows when those who are there admit them."""

    def agree(group: NativeGroup) -> None:
        agree_on(group, "elastic/mode", mode.words() + _words_of(state))
        agree_on_model(group, "elastic/model", model)

    route = ElasticRoute(job, Handover("elastic/start", model, optimizer, state, agree), state)
    made = _gradient_schedule(job, model, optimizer, options, [route], "off", passes_per_step)
    job.keep(made)
    assert isinstance(made.synchronizer, ElasticSynchronizer)
    made.synchronizer.learn()
    job.rank, job.size = job.membership.rank, job.membership.size


def _words_of(state: Sequence[Stateful]) -> str:
    return f", state={', '.join(type(each).__name__ for each in state)}" if state else ""


def _check_goes_with_elastic(
    job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, mode: SyncMode, options: SyncOptions, transport: str
) -> None:
    reason = None
    if transport == C10D:
        reason = "transport='c10d': a process group ends with its first rank; accepted are native and auto"
    elif shard_mesh(model, optimizer) is not None:
        reason = "a sharded model: a lost rank takes its shards along"
    elif not mode.averages_gradients or mode.backups:
        reason = f"{mode.words()}: ranks wait for each other in every step"
    elif options.selection.schemes:
        reason = "codecs, which keep what they owe in the epoch that ends; compression is none, fp16 or bf16"
    elif job.settings.nonfinite != "pass":
        reason = f"LEGATO_NONFINITE={job.settings.nonfinite}; lg.GradScaler skips steps that overflow"
    elif job.settings.in_host:
        reason = "LEGATO_IN_HOST=1: a process group ends with its first rank"
    elif job.kept:
        reason = "a second schedule; give all parameters to one optimizer"
    if reason is not None:
        raise InputError(f"LEGATO_ELASTIC={job.settings.elastic} does not go with {reason}")


def _check_goes_with_shards(mode: SyncMode, transport: str, nonfinite: str) -> None:
    if transport == C10D:
        raise InputError(
            "transport='c10d' does not go with a sharded model; accepted are native and auto, or without legato a mesh "
            "of two dimensions for fully_shard: then torch averages between hosts over its process groups"
        )
    if not mode.averages_gradients or mode.backups:
        raise InputError(f"{mode.words()} does not go with a sharded model, whose ranks wait for each other anyway")
    if nonfinite != "pass":
        raise InputError(
            f"LEGATO_NONFINITE={nonfinite} does not go with a sharded model: a rank sees but a part of a gradient; "
            "lg.GradScaler skips steps that overflow"
        )


def check_is_new(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
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


def _weight_schedule(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    mode: SyncMode,
    options: SyncOptions,
    route: Route,
) -> WeightSchedule:
    """Of ranks that step alone, and whose weights travel."""
    slots = [Slot(name, parameter) for _, name, parameter in trained(model, optimizer)]
    exchange: Exchange
    if mode.staleness:
        exchange = Asynchronous(job.group, options.prefix, slots, mode.staleness)
    else:
        exchange = LocalSteps(route.synchronizer(options, slots), slots, mode.local_steps, mode.outer)
    return WeightSchedule(model, optimizer, exchange, slots)


def _gradient_schedule(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    options: SyncOptions,
    routes: Sequence[Route],
    tuner: str | None,
    passes_per_step: int,
) -> Schedule:
    """Over the first route, or over whichever turns out to be faster."""
    built: dict[str, Synchronizer] = {}

    def synchronizer(slots: Sequence[Slot]) -> Synchronizer:
        built.update({route.transport: route.synchronizer(options, slots) for route in routes})
        first = routes[0].transport
        return built[first] if len(routes) == 1 else Switching(built, first, len(slots))

    # Ranks that a step need not wait for are not waited for here either.
    compares = job.settings.check is not False and not options.backups and not job.is_elastic
    made = Schedule(
        model,
        optimizer,
        synchronizer,
        timeline=job.timeline,
        prefix=options.prefix,
        passes_per_step=passes_per_step,
        make_comparison=partial(_comparison, job, routes) if compares else None,
        beside=partial(_beside, routes),
        nonfinite=_nonfinite(job, routes),
    )
    tuning, why = _tuning(routes[0], made.slots, built[routes[0].transport], options, tuner, job.monitor)
    if len(routes) > 1:
        tuning = _trial(job, made, built, routes, tuning)
    about = _about(job, made, routes, options, why)
    if job.rank == 0:
        _log.info("%s", about)
    if job.monitor is not None:
        tuning = _probe(job.monitor, made, about, tuning)
    if tuning is not None:
        made.tune(tuning)
    pace = _pace(job, routes, made.slots)
    if pace is not None:
        made.keep_pace(pace)
    return made


def _about(job: Job, made: Schedule, routes: Sequence[Route], options: SyncOptions, tuning: str) -> str:
    """What is on, and why, in one line."""
    transport = routes[0].transport
    if len(routes) > 1:
        transport += f" (the first steps try {routes[1].transport} as well)"
    if any(isinstance(route, InHostRoute) for route in routes):
        transport += f", {NATIVE} with sums in each host over its process group"
    policy = options.policy if isinstance(options.policy, str) else type(options.policy).__name__
    if options.plan is not None:
        policy = "as the given plan says"
    num_bytes = sum(slot.parameter.nbytes for slot in made.slots)
    return (
        f"legato is on: {job.size} workers, {len(made.slots)} gradients of {num_bytes / 1e6:.1f} MB together, "
        f"transport {transport}, policy {policy}, tuner {tuning}"
    )


def _probe(monitor: Monitor, made: Schedule, about: str, then: Tuning | None) -> Probe:
    """What the monitor hears; priorities are known when the order of first use is."""
    slots = made.slots
    priority_of = {index: index for index in range(len(slots))}

    def ordered(order: Sequence[int]) -> None:
        priority_of.update({index: priority for priority, index in enumerate(order)})
        monitor.describe(about, tuple((slots[index].name, slots[index].parameter.nbytes) for index in order))

    def queue() -> Queue:
        return tuple(sorted((priority_of[index], num_bytes) for index, num_bytes in made.under_way()))

    monitor.describe(about)
    return Probe(monitor, clock_of(slots[0].parameter.device), ordered=ordered, queue=queue, then=then)


def _pace(job: Job, routes: Sequence[Route], slots: Sequence[Slot]) -> Pace | None:
    """What finds stragglers, over native, by the steps of the job's first schedule. On an accelerator whoever wants it
    asks for it: its clock is not free."""
    native = next((route for route in routes if isinstance(route, NativeRoute | ElasticRoute)), None)
    devices = {slot.parameter.device for slot in slots}
    is_wanted = job.settings.stragglers in ("wait", "evict") or (
        job.settings.stragglers is None and all(device.type == "cpu" for device in devices)
    )
    if native is None or job.kept or not is_wanted or len(devices) != 1:
        return None
    route = native
    return Pace(lambda: route.group.session, clock_of(devices.pop()))


def _comparison(job: Job, routes: Sequence[Route], slots: Sequence[Slot]) -> Comparison:
    """Of weights."""
    return Comparison(_beside(routes), job.name("weights"), slots, always=bool(job.settings.check))


def _nonfinite(job: Job, routes: Sequence[Route]) -> NonFinite | None:
    """What looks for gradients that are not finite, where somebody asks for it."""
    policy = job.settings.nonfinite
    return None if policy == "pass" else NonFinite(_beside(routes), job.name("nonfinite"), skips=policy == "skip")


def _beside(routes: Sequence[Route]) -> Group:
    """Connections on which gradients cannot get in between."""
    return min(routes, key=lambda route: route.transport != NATIVE).beside()


def _tuning(
    route: Route,
    slots: Sequence[Slot],
    synchronizer: Synchronizer,
    options: SyncOptions,
    tuner: str | None,
    monitor: Monitor | None,
) -> tuple[Tuning | None, str]:
    """What finds better plans, where somebody asks for it or nobody says what to do; and why it is on or off."""
    why_off = ""
    if tuner == "off":
        why_off = "as asked"
    elif tuner is None and (options.policy != "auto" or options.is_told):
        why_off = "somebody has said what to do"
    # The monitor knows T* where layers are timed; on an accelerator that costs an event for each, and is not done.
    if why_off and (monitor is None or any(slot.parameter.is_cuda for slot in slots)):
        return None, f"off ({why_off})"
    found = _live_tuning(route, slots, synchronizer, options, None if why_off else tuner or DEFAULT_TUNER, monitor)
    if isinstance(found, LiveTuning):
        return (
            found,
            f"off ({why_off})" if why_off else f"{tuner or DEFAULT_TUNER} ({'as asked' if tuner else 'by default'})",
        )
    if tuner not in (None, "off"):
        _log.warning("tuner %r is off: %s", tuner, found)
    return None, f"off ({why_off or found})"


def _live_tuning(
    route: Route,
    slots: Sequence[Slot],
    synchronizer: Synchronizer,
    options: SyncOptions,
    tuner: str | None,
    monitor: Monitor | None,
) -> LiveTuning | str:
    """It, or why this schedule cannot follow another plan; without a tuner, what only measures."""
    if isinstance(route, InHostRoute):
        return "shares of sums in the host travel, and a tuner knows gradients"
    if not isinstance(synchronizer, NativeSynchronizer) or not isinstance(route, NativeRoute):
        return "over c10d the plan is static"
    if options.backups:
        return "who comes too late is left out part by part, so other parts would change the results"
    if options.plan is not None or options.policy == "fifo":
        return "a given plan, or policy 'fifo', leaves nothing to choose"
    if options.selection.schemes:
        return "codecs work part by part, so other parts would change the results"
    if len({slot.parameter.device for slot in slots}) > 1:
        return "its parameters are on several devices, whose clocks differ"
    if not synchronizer.is_planned:
        return "plans count the steps of the job's first schedule, and this is another one"
    clock = clock_of(slots[0].parameter.device)
    return LiveTuning(route.group, synchronizer, [slot.name for slot in slots], tuner, clock, monitor)


def _trial(
    job: Job, made: Schedule, built: dict[str, Synchronizer], routes: Sequence[Route], then: Tuning | None
) -> TransportTrial:
    """Of the rival's transport against the one that the schedule begins with."""
    switching = made.synchronizer
    assert isinstance(switching, Switching)
    standing, rival = (candidate_of(built[route.transport]) for route in routes)
    clock = clock_of(made.slots[0].parameter.device)
    return TransportTrial(
        job.group,
        job.name("trial"),
        switching,
        clock,
        standing=standing,
        rival=rival,
        then=then,
        monitor=job.monitor,
    )
