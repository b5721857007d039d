"""Chrome's trace format: one process for each rank, one thread for each row. Perfetto opens it (docs/timeline.md)."""

import json
from collections.abc import Iterable, Sequence

from legato.observe.spans import Span

_ROWS_PER_SECTION = 100_000


def events(rank: int, title: str, spans: Sequence[Span], *, shift_ns: int = 0, label: str = "") -> str:
    """A rank's events as text, to be put beside those of the others; `shift_ns` brings its clock to rank 0's."""
    rows = sorted({span.row for span in spans})
    threads = {row: row.section * _ROWS_PER_SECTION + row.place + 1 for row in rows}
    entries: list[dict[str, object]] = [
        _metadata(rank, 0, "process_name", name=title),
        _metadata(rank, 0, "process_sort_index", sort_index=rank),
    ]
    if label:
        entries.append(_metadata(rank, 0, "process_labels", labels=label))
    for row, thread in threads.items():
        entries.append(_metadata(rank, thread, "thread_name", name=row.name))
        entries.append(_metadata(rank, thread, "thread_sort_index", sort_index=thread))
    entries += [
        {
            "ph": "X",
            "pid": rank,
            "tid": threads[span.row],
            "ts": (span.begin_ns + shift_ns) / 1e3,
            "dur": (span.end_ns - span.begin_ns) / 1e3,
            "cat": span.row.section.name.lower(),
            "name": span.name,
            **({"args": span.details} if span.details else {}),
        }
        for span in sorted(spans, key=lambda span: (threads[span.row], span.begin_ns, -span.end_ns))
    ]
    return ",\n".join(json.dumps(entry) for entry in entries)


def document(ranks: Iterable[str]) -> str:
    """The file that holds these ranks' events."""
    return '{"displayTimeUnit": "ms", "traceEvents": [\n' + ",\n".join(ranks) + "\n]}\n"


def _metadata(rank: int, thread: int, what: str, **arguments: object) -> dict[str, object]:
    return {"ph": "M", "pid": rank, "tid": thread, "name": what, "args": arguments}
