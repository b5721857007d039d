"""Prometheus' text format, version 0.0.4. Names follow OpenTelemetry's rules: base units, `_total` on counters."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Metric(NamedTuple):
    name: str
    kind: str
    help: str


STEP = _Metric("legato_step_duration_seconds", "gauge", "Median time of a recent step.")
STEPS = _Metric("legato_steps_total", "counter", "Steps that are over.")
RATE = _Metric("legato_step_rate_hertz", "gauge", "Steps a second.")
EXPOSED = _Metric("legato_exposed_communication_seconds", "gauge", "Time for which a step waits for sums.")
BOUND = _Metric("legato_step_bound_seconds", "gauge", "T*, the shortest possible step over these links.")
IO = _Metric("legato_network_io_bytes_total", "counter", "Bytes that a rank has moved over its links.")
SHARED = _Metric("legato_shared_memory_io_bytes_total", "counter", "Bytes moved through memory to ranks of its host.")
LINK_IO = _Metric("legato_link_io_bytes_total", "counter", "Bytes that a rank has exchanged with one peer.")
IN_FLIGHT = _Metric("legato_in_flight_bytes", "gauge", "Bytes started and not yet sent.")
QUEUED = _Metric("legato_queue_bytes", "gauge", "Bytes not averaged yet when backward ended, on rank 0.")
WORKERS = _Metric("legato_workers", "gauge", "Workers in the job.")
PLANS = _Metric("legato_plan_changes_total", "counter", "Plans that ranks have agreed on.")
FAULTS = _Metric("legato_faults_total", "counter", "Warnings and failures.")
INFO = _Metric("target_info", "gauge", "The job, as OpenTelemetry names its attributes.")
METRICS = (STEP, STEPS, RATE, EXPOSED, BOUND, IO, SHARED, LINK_IO, IN_FLIGHT, QUEUED, WORKERS, PLANS, FAULTS, INFO)

_Sample = tuple[_Metric, dict[str, object], float]


def exposition(jobs: Mapping[str, Mapping[str, Any]]) -> str:
    """The latest facts of each job."""
    samples = [sample for name, facts in jobs.items() for sample in _samples(name, facts)]
    lines = []
    for metric in METRICS:
        rows = [(labels, value) for each, labels, value in samples if each is metric]
        if rows:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{{{_labels(labels)}}} {value:.10g}" for labels, value in rows]
    return "\n".join([*lines, ""])


def _samples(name: str, facts: Mapping[str, Any]) -> Iterable[_Sample]:
    job = facts.get("job", {})
    here: dict[str, object] = {"job": name}
    yield WORKERS, here, job.get("workers", 0)
    attributes = {"service_name": "legato", "service_instance_id": job.get("run", ""), "host_name": job.get("host", "")}
    yield INFO, here | attributes, 1
    for metric, kind in ((PLANS, "plan"), (FAULTS, "fault")):
        yield metric, here, facts.get("counts", {}).get(kind, 0)
    for link in facts.get("links", {"links": ()})["links"]:
        medium = "memory" if link["shared"] else "network"
        between = here | {"rank": link["rank"], "peer": link["peer"], "link_medium": medium}
        yield LINK_IO, between | {"network_io_direction": "transmit"}, link["sent_bytes"]
        yield LINK_IO, between | {"network_io_direction": "receive"}, link["received_bytes"]
    point = facts.get("point")
    if point is None:
        return
    yield RATE, here, point["steps_per_s"]
    if point["bound_s"] is not None:
        yield BOUND, here, point["bound_s"]
    for priority, num_bytes in point["queue"]:
        yield QUEUED, here | {"priority": priority}, num_bytes
    for rank in point["ranks"]:
        of = here | {"rank": rank["rank"]}
        yield STEP, of, rank["step_s"]
        yield STEPS, of, rank["step"]
        yield EXPOSED, of, rank["exposed_s"]
        yield IO, of | {"network_io_direction": "transmit"}, rank["sent_bytes"]
        yield IO, of | {"network_io_direction": "receive"}, rank["received_bytes"]
        yield SHARED, of, rank["shared_bytes"]
        yield IN_FLIGHT, of, rank["in_flight_bytes"]


def _labels(labels: Mapping[str, object]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
