"""The last step of a timeline as a chart."""

from legato.live.facts import Box, Gantt
from legato.observe.latest import LatestStep

MAX_PARTS = 600
MAX_LANES = 8


def gantt(step: LatestStep | None) -> Gantt | None:
    """Computation of rank 0, and its parts in flight, longest first where there are too many."""
    if step is None:
        return None

    def seconds(ns: int) -> float:
        return round((min(max(ns, step.begin_ns), step.end_ns) - step.begin_ns) * 1e-9, 7)

    own = [
        Box(
            row="backward" if each.work == "backward" else "forward",
            kind=each.work,
            name=each.name,
            begin_s=seconds(each.begin_ns),
            end_s=seconds(each.end_ns),
        )
        for each in step.stretches
    ]
    shown = [span for span in step.parts if span.row.place < MAX_LANES]
    shown = sorted(shown, key=lambda span: span.begin_ns - span.end_ns)[:MAX_PARTS]
    flown = [
        Box(
            row=f"network {span.row.place + 1}",
            kind="part",
            name=span.name.partition("/")[2] or span.name,
            begin_s=seconds(span.begin_ns),
            end_s=seconds(span.end_ns),
        )
        for span in sorted(shown, key=lambda span: (span.row.place, span.begin_ns))
    ]
    total_s = round((step.end_ns - step.begin_ns) * 1e-9, 7)
    return Gantt(step=step.number, seconds=total_s, boxes=(*own, *flown))
