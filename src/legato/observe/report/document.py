"""The report: everything that a timeline says, section by section, as a page."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

from legato.observe.report.analysis import Analysis, Step, short_name
from legato.observe.report.gantt import gantt
from legato.observe.report.page import Card, Section, page
from legato.observe.report.recording import Recording

MAX_COLUMNS = 160
"""Steps that a chart shows one by one; of more, several share a column."""
_NO_LAYERS = (
    "The timeline holds no layers, so it does not tell computation from waiting. Models under `schedule` on PyTorch "
    "have them; collective functions and other frameworks note tasks and parts alone."
)


def report(recording: Recording, analysis: Analysis, subtitle: str, outlook: Section | None = None) -> str:
    """The page; `outlook` is what would help, which is for others to find out."""
    chart, left_out = gantt(recording, analysis, "what each rank did when")
    sections = [
        Section(
            id="gantt",
            kind="gantt",
            title="What each rank did when",
            about="Drag to move, hold Ctrl or Shift and turn the wheel to zoom, point at a box to read it; "
            "click a rank's name to open or close its rows. Parts are paler once they have left for the network.",
            content=chart,
            remarks=left_out,
        ),
        _stack(analysis),
    ]
    if len(recording.ranks) > 1 and analysis.steps:
        sections.append(_stragglers(recording, analysis))
    sections.append(_tensors(analysis))
    if outlook is not None:
        sections.append(outlook)
    return page("Where the time went", subtitle, _cards(recording, analysis), sections)


def _cards(recording: Recording, analysis: Analysis) -> list[Card]:
    summary = analysis.summary
    workers = Card(
        label="workers",
        value=str(recording.num_workers),
        about=f"{sum(tensor.num_bytes for tensor in analysis.tensors) / 1e6:.1f} MB of gradients a step",
    )
    if summary is None:
        return [workers]
    compute, exposed = summary.compute_s / summary.step_s, summary.exposed_s / summary.step_s
    return [
        Card(label="step", value=ms(summary.step_s), about=f"mean of the usual {len(analysis.usual_steps)}, all ranks"),
        Card(label="compute", value=ms(summary.compute_s), about=f"{compute:.0%} of the step"),
        Card(
            label="exposed communication",
            value=ms(summary.exposed_s),
            about=f"{exposed:.0%} of the step: what a schedule can win back",
            tone="bad" if exposed > 0.1 else "",
        ),
        Card(label="hidden communication", value=ms(summary.hidden_s), about="behind compute: costs no time"),
        Card(label="idle", value=ms(summary.idle_s), about="between two steps: data, the loop's own work"),
        workers,
    ]


def _stack(analysis: Analysis) -> Section:
    title = "Where the time of each step went"
    if not analysis.steps:
        return Section(id="stack", kind="text", title=title, about=_NO_LAYERS)
    by_number: dict[int, list[Step]] = defaultdict(list)
    for step in analysis.steps:
        by_number[step.number].append(step)
    columns = _columns(sorted(by_number))
    bars = []
    for numbers in columns:
        steps = [step for number in numbers for step in by_number[number]]
        bars.append(
            {
                "label": _label(numbers),
                "compute": mean(step.compute_ns for step in steps) / 1e3,
                "hidden": mean(step.hidden_ns for step in steps) / 1e3,
                "exposed": mean(step.exposed_ns for step in steps) / 1e3,
                "idle": mean(step.idle_ns for step in steps) / 1e3,
            }
        )
    labels = {
        "hidden": "compute that hides communication",
        "compute": "compute",
        "exposed": "exposed communication",
        "idle": "idle",
    }
    remarks = [*_shared(columns)]
    if not all(step.is_whole for step in analysis.steps):
        remarks.append("A step whose predecessor was not recorded begins with its own first layer.")
    return Section(
        id="stack",
        kind="stack",
        title=title,
        about="The mean of all ranks, from the end of one backward pass to the end of the next.",
        content={"steps": bars, "labels": labels},
        remarks=tuple(remarks),
    )


def _stragglers(recording: Recording, analysis: Analysis) -> Section:
    late = analysis.lateness()
    columns = _columns(sorted({number for _, number in late}))
    cells = [
        [
            _mean([late[rank.number, number] for number in numbers if (rank.number, number) in late])
            for numbers in columns
        ]
        for rank in recording.ranks
    ]
    return Section(
        id="stragglers",
        kind="stragglers",
        title="Stragglers: worker × step",
        about=f"Red computes longer than the median rank of that step, blue shorter. {straggler(recording, analysis)}",
        content={
            "ranks": [rank.title for rank in recording.ranks],
            "steps": [_label(numbers) for numbers in columns],
            "late": cells,
        },
        remarks=tuple(_shared(columns)),
    )


def straggler(recording: Recording, analysis: Analysis) -> str:
    """Who keeps the others waiting, in a sentence."""
    late: dict[int, list[float]] = defaultdict(list)
    for (rank, _), share in analysis.lateness().items():
        late[rank].append(share)
    slowest = max(late, key=lambda rank: mean(late[rank]))
    share = mean(late[slowest])
    title = next(rank.title for rank in recording.ranks if rank.number == slowest)
    if share < 0.05:
        return "No rank computes more than 5 % longer than the median on average."
    return (
        f"{title[0].upper()}{title[1:]} computes {share:.0%} longer than the median on average: the others wait for it."
    )


def _tensors(analysis: Analysis) -> Section:
    columns = [
        ("tensor", "", "in the order in which the forward pass needs them"),
        ("bytes", "bytes", "of one step"),
        ("queued", "us", "from its gradient being there to its first part starting; median"),
        ("in flight", "us", "from there until its whole sum is back; median"),
        ("slowest", "us", "the longest time in flight"),
        ("slack", "us", "how long its sum lay there before it was applied; median"),
        ("exposed", "us", "what forward passes waited for it, in a step"),
        ("preempted", "count", "how often others went before its last bytes, in a step"),
    ]
    rows: list[list[Any]] = [
        [
            short_name(tensor.name),
            tensor.num_bytes,
            round(tensor.queued_s * 1e6, 1),
            round(tensor.flying_s * 1e6, 1),
            round(tensor.slowest_s * 1e6, 1),
            round(tensor.arrived_s * 1e6, 1),
            round(tensor.exposed_s * 1e6, 1),
            round(tensor.times_preempted, 2),
        ]
        for tensor in analysis.tensors
    ]
    return Section(
        id="tensors",
        kind="table",
        title="Queueing and transfer, tensor by tensor",
        about="Click a heading to sort. Long in the queue: others went first. Long in flight: large, or others' bytes "
        "were on the link, or another rank was late. Exposed is what to look at.",
        content={
            "columns": [{"title": title, "unit": unit, "about": about} for title, unit, about in columns],
            "rows": rows,
        },
    )


def _columns(numbers: Sequence[int]) -> list[list[int]]:
    """Steps that share a column of a chart."""
    each = -(-len(numbers) // MAX_COLUMNS)
    return [list(numbers[begin : begin + each]) for begin in range(0, len(numbers), each)]


def _shared(columns: Sequence[Sequence[int]]) -> list[str]:
    most = max(map(len, columns))
    return [f"Each column is the mean of {most} steps."] if most > 1 else []


def _label(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(mean(known), 4) if known else None


def ms(seconds: float) -> str:
    """As users read it."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
