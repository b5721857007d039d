"""Forecasts: what would help a recorded run, asked of the twin.

    recording ──► a report of each rank ──► statistics ──► twin ──► what if …

A recording holds the layers' times and what a step waited for; how fast the links are follows from the two. It does not
hold where sums were made: the workers themselves are assumed to serve, each on a host of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from legato.core import Layer, Workload
from legato.observe.notes import HAND_OVER
from legato.observe.report.analysis import Analysis, Step, short_name
from legato.observe.report.recording import Rank, Recording
from legato.sim.cluster import Cluster, Ownership
from legato.tuning.candidate import C10D, NATIVE, Candidate
from legato.tuning.statistics import Report, Statistics, gather
from legato.tuning.twin.transports import (
    OPERATIONS_IN_FLIGHT,
    PARTS_IN_FLIGHT,
    SPACES,
    cluster_over,
    measured_cluster,
)
from legato.tuning.twin.twin import NOTEWORTHY, Prediction, Twin

_NOTHING = 0.01
"""Of a step, waiting for less than this is waiting for nothing: no change of the links could be noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One thing that could be changed, and what a step would take then."""

    change: str
    step_s: float
    error: float | None
    """Relative, of a prediction; None for a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What would help; or why nothing can be said."""

    outlooks: tuple[Outlook, ...] = ()
    """In the order to be shown; T*, the bound of what runs, first."""
    gbps: float | None = None
    """Goodput of a link, as the waits of the recording show it."""
    remarks: tuple[str, ...] = ()
    """What is assumed, or what is missing."""


def forecast(recording: Recording, analysis: Analysis) -> Forecast:
    """Of the run that was recorded."""
    reason = _reason_against(recording, analysis)
    if reason is not None:
        return Forecast(remarks=(reason,))
    workload = _workload(recording, analysis)
    if workload is None:
        return Forecast(remarks=("The names of tensors do not tell which layers they belong to: no forecast.",))
    candidate = _candidate(recording)
    statistics = gather(
        [_report(rank, analysis, workload) for rank in recording.ranks],
        candidate=candidate,
        workers=len(recording.ranks),
        workload=workload,
    )
    if isinstance(statistics, str):
        return Forecast(remarks=(f"No forecast: {statistics}.",))
    shape = Cluster(workers=recording.num_workers, gbps=1.0, overtaking=candidate.transport == NATIVE)
    assert analysis.summary is not None
    exposed = analysis.summary.exposed_s / analysis.summary.step_s
    cluster = measured_cluster(shape, statistics)
    if cluster is None or exposed < _NOTHING:
        return Forecast(
            remarks=(
                f"{exposed:.1%} of a step is spent waiting: computation hides the communication, and nothing is to be "
                "gained from faster links, fewer bytes or more servers. How fast the links are cannot be told.",
            )
        )
    return _ask(shape, cluster, replace(statistics, iteration_s=analysis.summary.step_s))


def _ask(shape: Cluster, cluster: Cluster, statistics: Statistics) -> Forecast:
    transport, workload = statistics.candidate.transport, statistics.workload
    assert transport is not None
    twin = Twin(SPACES[transport], shape, start=statistics.candidate)
    twin.tell(statistics)

    def bound_s(seen: Cluster, bytes_by: float = 1.0) -> float:
        """The rates are those of the slower steps, and what was measured is possible."""
        found_s = workload.scaled(bytes_by=bytes_by).bound_s(cluster_over(seen, transport).seconds_per_byte)
        return min(found_s, statistics.iteration_s)

    outlooks = [
        Outlook(change="T*: nothing can be faster over these links", step_s=bound_s(cluster), error=None),
        _outlook("half the bytes (compression='fp16')", twin.what_if(bytes_by=0.5), bound_s(cluster, 0.5)),
        _outlook(
            "links twice as fast",
            twin.what_if(gbps=2 * cluster.gbps),
            bound_s(replace(cluster, gbps=2 * cluster.gbps)),
        ),
    ]
    remarks = ["Assumed, because a timeline does not tell: each worker is on a host of its own and sums its share."]
    if transport == NATIVE:
        for count in sorted({max(shape.workers // 2, 1), shape.workers}) if shape.workers > 2 else ():
            served = replace(cluster, servers=count, deployment=Ownership.MIXED)
            change = f"{count} {'server' if count == 1 else 'servers'} beside the workers"
            outlooks.append(_outlook(change, twin.what_if(servers=count), bound_s(served)))
        if shape.workers == 2:
            remarks.append("Servers beside two workers would not help: their links would carry as many bytes as now.")
    else:
        remarks.append("The parts do not say when they were sent, as the native engine's do: a ring is simulated.")
    best = twin.predictions()[0]
    if best.iteration_s < statistics.iteration_s * (1 - NOTEWORTHY):
        outlooks.append(_outlook(f"another plan: {best.candidate}", best, bound_s(cluster)))
    return Forecast(outlooks=tuple(outlooks), gbps=cluster.gbps, remarks=tuple(remarks))


def _outlook(change: str, prediction: Prediction, bound_s: float) -> Outlook:
    """The twin scales what it simulates by what was measured: that must not lead below what is possible."""
    return Outlook(change=change, step_s=max(prediction.iteration_s, bound_s), error=prediction.error)


def _reason_against(recording: Recording, analysis: Analysis) -> str | None:
    if not any(step.is_whole for step in analysis.steps):
        return "No forecast: that takes two steps in a row, with the layers' times, which `schedule` notes on PyTorch."
    if recording.num_workers < 2:
        return "No forecast: one worker has nobody to talk to."
    numbers = [rank.number for rank in recording.ranks]
    if numbers != list(range(len(numbers))):
        return f"No forecast: of {numbers[-1] + 1} ranks, only {', '.join(map(str, numbers))} are here."
    if not any(rank.flights for rank in recording.ranks):
        return "No forecast: no communication was recorded."
    return None


def _candidate(recording: Recording) -> Candidate:
    """What ran, as far as the parts show it."""
    flights = [flight for rank in recording.ranks for flight in rank.flights]
    part_bytes = max(1, *(flight.num_bytes for flight in flights))
    if all(flight.sent_ns is None for flight in flights):
        return Candidate("bytescheduler", part_bytes, OPERATIONS_IN_FLIGHT * part_bytes, C10D)
    return Candidate("bytescheduler", part_bytes, PARTS_IN_FLIGHT * part_bytes, NATIVE)


_REST = "(between layers)"


def _workload(recording: Recording, analysis: Analysis) -> Workload | None:
    """Layers in the order of rank 0's forward pass, their times left to the reports.

    The first one has no bytes and stands for what is no layer's: modules without parameters, data, the loss.
    """
    layers = list(dict.fromkeys(stint.name for stint in recording.ranks[0].stints if stint.work == "forward"))
    num_bytes: Counter[str] = Counter()
    for tensor in analysis.tensors:
        name = short_name(tensor.name)
        layer = name if name in layers else name.rpartition(".")[0]
        if layer in layers:
            num_bytes[layer] += tensor.num_bytes
    known = sum(num_bytes.values())
    # Small tensors of legato's own, by which ranks agree on something, belong to no layer.
    if known < 0.99 * sum(tensor.num_bytes for tensor in analysis.tensors) or not known:
        return None
    return Workload(
        "recorded", (Layer(_REST, 0, 0.0, 0.0), *(Layer(name, num_bytes[name], 0.0, 0.0) for name in layers))
    )


def _report(rank: Rank, analysis: Analysis, workload: Workload) -> Report:
    """What the rank's own meter would have measured (tuning/live/meter.py)."""
    steps = {step.number: step for step in analysis.whole_steps if step.rank == rank.number}
    spent: dict[str, dict[str, dict[int, int]]] = {
        work: defaultdict(lambda: defaultdict(int)) for work in ("forward", "backward")
    }
    for stint in rank.stints:
        if stint.work in spent and stint.step in steps:
            spent[stint.work][stint.name][stint.step] += stint.end_ns - stint.begin_ns
    times_s = {
        work: [
            median(spent[work][layer.name].get(number, 0) for number in steps) * 1e-9 if steps else 0.0
            for layer in workload.layers[1:]
        ]
        for work in spent
    }
    steps_s = tuple(step.ns * 1e-9 for step in steps.values())
    exposed_s = median(step.exposed_ns for step in steps.values()) * 1e-9 if steps else 0.0
    rest_s = max((median(steps_s) if steps else 0.0) - exposed_s - sum(map(sum, times_s.values())), 0.0)
    rates = tuple(_rates(rank, steps, workload.num_bytes))
    return Report(
        rank=rank.number,
        steps_s=steps_s,
        forward_s=(rest_s, *times_s["forward"]),
        backward_s=(0.0, *times_s["backward"]),
        up_bytes_per_s=rates,
        down_bytes_per_s=rates,
    )


def _rates(rank: Rank, steps: dict[int, Step], num_bytes: int) -> Iterator[float]:
    """From the first gradient of a step to the end of the last wait for its sums: nobody waits for less than all."""
    first_ready_ns: dict[int, int] = {}
    for task in rank.tasks:
        first_ready_ns[task.step] = min(task.ready_ns, first_ready_ns.get(task.step, task.ready_ns))
    last_wait_ns: dict[int, int] = {}
    for stint in rank.stints:
        if stint.work == "wait" and stint.name != HAND_OVER:
            last_wait_ns[stint.step] = max(stint.end_ns, last_wait_ns.get(stint.step, 0))
    for number in steps:
        begin_ns, end_ns = first_ready_ns.get(number - 1), last_wait_ns.get(number)
        if begin_ns is not None and end_ns is not None and begin_ns < end_ns:
            yield num_bytes / (end_ns - begin_ns) * 1e9
