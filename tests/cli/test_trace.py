"""`legato trace report` as a user calls it."""

from pathlib import Path

import pytest

from legato.cli import main


@pytest.fixture
def timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "run.json"
    assert main(["sim", "alexnet", "--workers", "4", "--gbps", "10", "--timeline", str(path)]) == 0
    capsys.readouterr()
    return path


def test_the_summary_and_the_page(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "report", str(timeline)]) == 0
    out = capsys.readouterr().out
    assert "A step of 4 workers" in out
    assert all(
        word in out for word in ("exposed communication", "idle", "waited for most", "T*: nothing can be faster")
    )
    page = timeline.with_suffix(".html")
    assert f"The whole report: {page}" in out
    assert "What would help" in page.read_text()


def test_another_place_for_the_page_and_none(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = timeline.with_name("page.html")
    assert main(["trace", "report", str(timeline), "--text"]) == 0
    assert "The whole report" not in capsys.readouterr().out
    assert main(["trace", "report", str(timeline), "--out", str(page)]) == 0
    assert sorted(each.name for each in timeline.parent.iterdir()) == ["page.html", "run.json"]


def test_wrong_files_and_places_are_one_line(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "report", str(timeline.with_name("none.json"))]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["trace", "report", str(timeline), "--out", str(timeline / "page.html")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("legato: --out: ")
