"""Forecasts: what a step of a model would take over given links, by DDP and by legato, before anything is trained.

    workload ──┬─► DDP's buckets ──────► a ring of collectives ──┬─► seconds a step, at the links' rate
    links ─────┘   legato's own plan ──► the engine, simulated ──┘   and at the lowest and highest that was seen

Nothing is fitted to training. What operations cost beside their bytes is the same for all models (docs/benchmark.md has
how far such predictions are from what is then measured).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from legato.core import Plan, Workload
from legato.core.policies import WaitFree
from legato.doctor.links import Links
from legato.exchange.planner import NativePlanner
from legato.settings import Settings
from legato.sim import Architecture, Cluster, Ownership, simulate
from legato.transports.native.session import PARTITION_BYTES
from legato.tuning.twin.forecast import Outlook
from legato.tuning.twin.transports import OPERATIONS_IN_FLIGHT, STARTUP_S
from legato.tuning.twin.twin import NOTEWORTHY

NATIVE_LATENCY_S = 100e-6
"""One hop of the engine beside the network's own latency: two queues, and two threads that wake up."""
MODEL_ERROR = 0.03
"""Of the simulator, with links and layers known exactly: at most 2.8 % in 29 cells of the benchmark."""
FP16_BY = 0.5
"""Bytes that are left of float32."""
MOST_BYTES, MOST_PLACES = 32_000_000, 4
"""The engine is simulated piece by piece. Larger models lose bytes and bandwidth alike, and more hosts are simulated by
so many whose links are as busy; either takes as long as it would."""
_WARMUP, _STEPS = 2, 2
"""Steps of a simulation: four measured ones instead of two change less than 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do."""

    use: str
    """`off`, or the outlook to choose."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prognosis:
    """Of one model over the links of a job."""

    model: str
    num_bytes: int
    """Of its gradients."""
    compute_s: float
    outlooks: tuple[Outlook, ...]
    """DDP first, then legato as it is set, then what could be added to it; T* last."""
    advice: Advice


def ring_of(cluster: Cluster) -> Cluster:
    """The cluster as Gloo's collectives use it; the latency is the network's."""
    return replace(
        cluster,
        architecture=Architecture.ALLREDUCE,
        latency_s=cluster.latency_s + STARTUP_S / (2 * max(cluster.workers - 1, 1)),
        operations_in_flight=OPERATIONS_IN_FLIGHT,
    )


def engine_of(cluster: Cluster) -> Cluster:
    """The cluster as legato's engine uses it; the latency is the network's."""
    return replace(cluster, architecture=Architecture.NATIVE, latency_s=cluster.latency_s + NATIVE_LATENCY_S)


def foresee(workload: Workload, links: Links, settings: Settings, servers: tuple[int, ...] | None = None) -> Prognosis:
    """With legato as it is set. `servers` are numbers of them to try: by default half as many as hosts, and as many."""
    if servers is None:
        places = links.num_places
        servers = tuple(sorted({max(places // 2, 1), places})) if places > 2 else ()
    legato = partial(_legato_s, workload, links, settings)
    asked = {"legato": legato}
    for count in servers:
        asked[f"legato, {count} {'server' if count == 1 else 'servers'}"] = partial(legato, servers=count)
    asked["legato, fp16"] = partial(legato, bytes_by=FP16_BY)
    # Where legato's engine was slower than TCP, training by it may be, too.
    slow_gbps = min(links.low_gbps, links.engine_gbps or links.low_gbps)
    outlooks = [
        _outlook("DDP", partial(_ddp_s, workload, links), links, links.low_gbps),
        *(_outlook(name, ask, links, slow_gbps) for name, ask in asked.items()),
    ]
    shortest_s = workload.bound_s(Cluster(workers=links.num_places, gbps=links.gbps).seconds_per_byte)
    outlooks.append(Outlook(change="T*", step_s=shortest_s, error=None))
    return Prognosis(
        model=workload.name,
        num_bytes=workload.num_bytes,
        compute_s=workload.compute_s,
        outlooks=tuple(outlooks),
        advice=advise(outlooks),
    )


def advise(outlooks: list[Outlook]) -> Advice:
    """The first in their order that nothing after it beats by enough to be worth the trouble; DDP is `off`."""
    ddp, *others = [each for each in outlooks if each.error is not None]
    chosen = ddp
    for each in others:
        if each.step_s < chosen.step_s * (1 - NOTEWORTHY):
            chosen = each
    if chosen is ddp:
        best = min(others, key=lambda each: each.step_s)
        gain = max(1 - best.step_s / ddp.step_s, 0.0)
        return Advice(
            use="off",
            why=f"{best.change} would save {gain:.1%} of a step; less than {NOTEWORTHY:.0%} is not worth the trouble",
        )
    gain = 1 - chosen.step_s / ddp.step_s
    assert ddp.error is not None
    assert chosen.error is not None
    doubt = "" if gain > ddp.error + chosen.error else "; the two are so near that you should measure both"
    return Advice(use=chosen.change, why=f"it saves {gain:.0%} of a step by DDP{doubt}")


def _outlook(name: str, ask: Callable[[float], float], links: Links, low_gbps: float) -> Outlook:
    """`ask` takes a factor on the links' rate."""
    step_s = ask(1.0)
    factors = {low_gbps / links.gbps, links.high_gbps / links.gbps} - {1.0}
    by_links = max((abs(ask(factor) / step_s - 1) for factor in factors), default=0.0)
    return Outlook(change=name, step_s=step_s, error=(MODEL_ERROR**2 + by_links**2) ** 0.5)


def _ddp_s(workload: Workload, links: Links, factor: float) -> float:
    """Every rank is in the ring, which crosses the link of each host once."""
    cluster = Cluster(workers=links.num_workers, gbps=links.gbps * factor, latency_s=links.latency_s)
    return _simulated_s(workload, ring_of(cluster), WaitFree().plan(workload.tensors))


def _legato_s(
    workload: Workload,
    links: Links,
    settings: Settings,
    factor: float,
    *,
    servers: int = 0,
    bytes_by: float = 1.0,
) -> float:
    """Ranks of one host are one place: they sum among themselves first."""
    cluster = Cluster(
        workers=links.num_places,
        gbps=links.gbps * factor,
        latency_s=links.latency_s,
        servers=servers,
        deployment=Ownership.MIXED if servers else Ownership.JOINT,
    )
    workload, cluster = _affordable(workload, cluster)
    plan = own_plan(workload, cluster, settings)
    # Half the bytes over a link are all of them over one of twice the rate.
    faster = replace(cluster, gbps=cluster.gbps / bytes_by)
    return _simulated_s(workload, engine_of(faster), plan)


def _simulated_s(workload: Workload, cluster: Cluster, plan: Plan) -> float:
    return simulate(workload, cluster, plan, warmup=_WARMUP, steps=_STEPS).iteration_s


def own_plan(workload: Workload, cluster: Cluster, settings: Settings) -> Plan:
    """What legato would begin with over links of this rate."""
    planner = NativePlanner(
        policy=settings.policy,
        partition_bytes=settings.partition_bytes,
        credit_bytes=settings.credit_bytes,
        fusion_bytes=settings.fusion_bytes,
        bytes_per_s=cluster.bytes_per_second(),
    )
    return planner.write(workload.tensors, PARTITION_BYTES, cluster.workers + cluster.servers)


def _affordable(workload: Workload, cluster: Cluster) -> tuple[Workload, Cluster]:
    """A question that takes seconds to answer, with the same answer."""
    if cluster.workers > MOST_PLACES:
        servers = -(-cluster.servers * MOST_PLACES // cluster.workers)
        few = replace(cluster, workers=MOST_PLACES, servers=servers)
        cluster = replace(few, gbps=few.gbps * few.seconds_per_byte / cluster.seconds_per_byte)
    if workload.num_bytes <= MOST_BYTES:
        return workload, cluster
    fraction = MOST_BYTES / workload.num_bytes
    return workload.scaled(bytes_by=fraction), replace(cluster, gbps=cluster.gbps * fraction)
