"""What a timeline's file shows, and what must hold in every one."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Box = tuple[str, int, int, dict[str, Any]]
"""(name, begin, end in nanoseconds, details)."""
Picture = dict[int, dict[str, list[Box]]]
"""Boxes by rank and row."""


def read(path: Path) -> Picture:
    """The boxes of a file that a viewer would accept."""
    document = json.loads(path.read_text())
    rows: dict[tuple[int, int], str] = {}
    picture: Picture = defaultdict(lambda: defaultdict(list))
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                rows[event["pid"], event["tid"]] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        begin_ns, length_ns = round(event["ts"] * 1e3), round(event["dur"] * 1e3)
        assert length_ns >= 0
        row = rows[event["pid"], event["tid"]]
        picture[event["pid"]][row].append((event["name"], begin_ns, begin_ns + length_ns, event.get("args", {})))
    return picture


def labels(path: Path) -> dict[int, str]:
    """What the file says of each rank."""
    events = json.loads(path.read_text())["traceEvents"]
    return {event["pid"]: event["args"]["labels"] for event in events if event["name"] == "process_labels"}


def check_nesting(picture: Picture) -> None:
    """In every row, two boxes are apart or one is inside the other: what viewers ask for."""
    for rank, rows in picture.items():
        for row, boxes in rows.items():
            around: list[int] = []
            for name, begin_ns, end_ns, _ in boxes:
                while around and around[-1] <= begin_ns:
                    around.pop()
                assert not around or end_ns <= around[-1], f"rank {rank}, row {row}: {name} at {begin_ns}"
                around.append(end_ns)


def phases(boxes: list[Box]) -> dict[int, list[str]]:
    """What the tasks in a tensor's row go through, by step."""
    by_step: dict[int, list[str]] = {}
    for name, _, _, details in boxes:
        if name.startswith("step "):
            latest = by_step[details["step"]] = []
        else:
            latest.append(name)
    return by_step
