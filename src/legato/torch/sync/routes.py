"""Routes: the ways that gradients can take between ranks, and what is built on each."""

import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist

from legato.errors import InputError, LegatoError
from legato.exchange.planner import NativePlanner
from legato.job import Job
from legato.torch.sync.broadcast import Stateful
from legato.torch.sync.c10d import C10dSynchronizer
from legato.torch.sync.c10d_plan import StaticConfig
from legato.torch.sync.elastic import ElasticSynchronizer, Meeting
from legato.torch.sync.in_host import InHostSynchronizer
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.options import SyncOptions
from legato.torch.sync.process_group import Group, ProcessGroup, ensure_world, group_apart, meet_over_process_group
from legato.torch.sync.replicas import replicas_of
from legato.torch.sync.synchronizer import Slot, Synchronizer
from legato.transports.native.group import NativeGroup
from legato.tuning.candidate import C10D, NATIVE, Candidate

_log = logging.getLogger(__name__)


class Route(Protocol):
    """A transport, and the ranks at its ends."""

    transport: ClassVar[str]

    @property
    def group(self) -> Group: ...

    def synchronizer(self, options: SyncOptions, slots: Sequence[Slot]) -> Synchronizer:
        """What averages gradients over it."""

    def bytes_sent(self) -> int | None:
        """By sockets, so far; None where nobody counts."""

    def beside(self) -> Group:
        """Where ranks compare notes while gradients are under way, without getting in between."""


class NativeRoute:
    """The engine's. Its operations have names, so gradients and notes do not mix."""

    transport: ClassVar[str] = NATIVE

    def __init__(self, group: NativeGroup) -> None:
        self.group = group

    def synchronizer(self, options: SyncOptions, slots: Sequence[Slot]) -> NativeSynchronizer:
        synchronizer = NativeSynchronizer(
            self.group,
            options.prefix,
            slots,
            options.compressor,
            options.selection,
            planner=_planner(options),
            backups=options.backups,
            late=options.late,
            runs_ahead=True,
        )
        if (options.is_told or options.policy != "auto") and not synchronizer.is_planned:
            reason = (
                "steps with backups follow no plan" if options.backups else "the plan is that of the first schedule"
            )
            _log.warning("only the order of this plan is followed, not its sizes and barriers: %s", reason)
        return synchronizer

    def bytes_sent(self) -> int:
        return self.group.session.engine.statistics()["bytes_sent"]

    def beside(self) -> NativeGroup:
        return self.group


def _planner(options: SyncOptions) -> NativePlanner:
    return NativePlanner(
        policy=options.policy,
        partition_bytes=options.partition_bytes,
        credit_bytes=options.credit_bytes,
        fusion_bytes=options.fusion_bytes,
        given=options.plan,
        bytes_per_s=options.bytes_per_s,
    )


Hosts = list[tuple[int, ...]]
"""The ranks of each host, as members have found when they joined."""


class InHostRoute(NativeRoute):
    """The engine's between hosts, for shares of what the ranks of a host sum over a process group of our own."""

    def __init__(self, job: Job, hosts: Hosts) -> None:
        super().__init__(job.group)
        self._replicas = replicas_of(job, hosts)
        self._between_hosts = NativeRoute(self._replicas.group)
        self._host = ProcessGroup(job.settings.timeout_s, hosts=hosts)

    def synchronizer(self, options: SyncOptions, slots: Sequence[Slot]) -> InHostSynchronizer:  # type: ignore[override]
        return InHostSynchronizer(
            self.group,
            self._host,
            self._replicas,
            partial(self._between_hosts.synchronizer, options),
            options.prefix,
            slots,
            fusion_bytes=options.fusion_bytes,
        )

    def bytes_sent(self) -> int:
        return super().bytes_sent() + self._between_hosts.bytes_sent()


class ElasticRoute:
    """The engine's, of an elastic job: from epoch to epoch it is another group."""

    transport: ClassVar[str] = NATIVE

    def __init__(self, job: Job, meeting: Meeting[Any], state: Sequence[Stateful]) -> None:
        """`state` is what newcomers take over at a meeting besides model and optimizer."""
        self._job = job
        self._meeting = meeting
        self._state = state

    @property
    def group(self) -> NativeGroup:
        return self._job.membership.group

    def synchronizer(self, options: SyncOptions, slots: Sequence[Slot]) -> ElasticSynchronizer[Any]:
        def make(
            group: NativeGroup,
            slots: Sequence[Slot],
            homes: list[torch.Tensor | None],
            first_steps: Sequence[int],
            order: Sequence[int] | None,
        ) -> NativeSynchronizer:
            return NativeSynchronizer(
                group,
                options.prefix,
                slots,
                options.compressor,
                planner=_planner(options),
                homes=homes,
                first_steps=first_steps,
                order=order,
            )

        job = self._job
        return ElasticSynchronizer(
            job.membership, options.prefix, slots, make, meeting=self._meeting, follow=job.follow, state=self._state
        )

    def bytes_sent(self) -> int:
        return self.group.session.engine.statistics()["bytes_sent"]

    def beside(self) -> NativeGroup:
        return self.group


class C10dRoute:
    """A process group of our own beside the user's. Its operations are matched by their order."""

    transport: ClassVar[str] = C10D

    def __init__(self, job: Job) -> None:
        ensure_world(job)
        self._job = job
        self.group = ProcessGroup(job.settings.timeout_s)

    def synchronizer(self, options: SyncOptions, slots: Sequence[Slot]) -> C10dSynchronizer:
        if options.selection.schemes:
            raise InputError("codecs need transport native; over c10d, compression is none, fp16 or bf16")
        return C10dSynchronizer(
            self.group,
            options.prefix,
            slots,
            options.compressor,
            config=StaticConfig(
                policy=options.policy,
                bucket_bytes=options.partition_bytes,
                credit_bytes=options.credit_bytes,
                fusion_bytes=options.fusion_bytes,
                given=options.plan,
            ),
            timeline=self._job.timeline,
            timeout_s=self._job.settings.timeout_s,
        )

    def bytes_sent(self) -> None:
        return None

    def beside(self) -> ProcessGroup:
        return group_apart(self._job)


def hosts_of(job: Job, slots_on: Collection[torch.device]) -> Hosts | str:
    """Where ranks can sum on their hosts over process groups; or why not. Every rank calls it."""
    of_workers = job.group.session.player.deployment.hosts[: job.size]
    by_host: dict[int, list[int]] = {}
    for rank, host in enumerate(of_workers):
        by_host.setdefault(host, []).append(rank)
    hosts = [tuple(ranks) for ranks in by_host.values()]
    reason = None
    if len(slots_on) != 1:
        reason = "parameters that are not all on one device"
    elif len(hosts) < 2 or len({len(ranks) for ranks in hosts}) > 1 or len(hosts[0]) < 2:
        sizes = " or ".join(str(size) for size in sorted({len(ranks) for ranks in hosts}))
        reason = (
            f"hosts of {sizes} ranks ({len(hosts)} in all); accepted are 2 or more hosts of equally many, 2 or more"
        )
    elif not (dist.is_available() and dist.is_initialized()):
        reason = "a job without torch.distributed; call torch.distributed.init_process_group before schedule"
    elif (dist.get_rank(), dist.get_world_size()) != (job.rank, job.size):
        reason = (
            f"rank {job.rank} of {job.size} as rank {dist.get_rank()} of {dist.get_world_size()} in torch.distributed; "
            "accepted are the same ranks in both"
        )
    if _all(NativeRoute(job.group), job.name("hosts"), reason is None):
        return hosts
    return reason or "ranks that disagree about this; another rank's log says why"


def usual_transport(*, on_cuda: bool) -> str:
    """What `auto` begins with: ours, except where an accelerator's tensors are trained over NCCL."""
    return C10D if _is_over_nccl() and on_cuda else NATIVE


def route_of(job: Job, transport: str, *, on_cuda: bool) -> Route:
    """What a schedule begins with."""
    is_protected = job.settings.wire != "plain"
    if transport == "auto":
        transport = NATIVE if is_protected else usual_transport(on_cuda=on_cuda)
    if transport == C10D and is_protected:
        raise InputError(
            f"LEGATO_WIRE is {job.settings.wire!r}, which transport c10d cannot do; accepted are native and auto"
        )
    if transport == NATIVE:
        return NativeRoute(job.group)
    if transport == C10D:
        route = C10dRoute(job)
        meet_over_process_group(job)
        return route
    raise InputError(f"transport {transport!r} is unknown; accepted: auto, native, c10d")


def rival_of(job: Job, route: Route, *, on_cuda: bool) -> Route | None:
    """The other one, where every rank has it: over the process group that the user trains over, or ours.

    None where results must not depend on which was faster: sums are made in another order. Nor where the wire is
    protected: only ours is.
    """
    has_world = dist.is_available() and dist.is_initialized() and (on_cuda or not _is_over_nccl())
    may_change = not torch.are_deterministic_algorithms_enabled() and job.settings.wire == "plain"
    if not _all(route, job.name("rival"), has_world and may_change):
        return None
    if route.transport == NATIVE:
        return C10dRoute(job)
    rival = None
    try:
        rival = NativeRoute(job.group)
    except LegatoError as error:
        _log.info("transport native is not tried: %s", error)
    return rival if _all(route, job.name("rival"), rival is not None) else None


def candidate_of(synchronizer: Synchronizer) -> Candidate:
    """What a synchronizer runs, as tuning says it."""
    if isinstance(synchronizer, C10dSynchronizer):
        return Candidate(synchronizer.policy, transport=C10D)
    return Candidate("bytescheduler", transport=NATIVE)


def _is_over_nccl() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_backend() == dist.Backend.NCCL


def _all(route: Route, name: str, mine: bool) -> bool:
    """Whether it is so on every rank."""
    return bool(route.group.allgather(name, np.array([mine], np.uint8)).all())
