"""`legato study` as a user calls it."""

import sys
from pathlib import Path

import pytest

from legato.cli import main
from legato.cli.checkout import from_checkout
from legato.errors import InputError

pytest.importorskip("plotly")


def test_one_recipe_makes_a_report_and_a_second_run_simulates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.study.main.find_browser", lambda: None)
    for expected in ("9 simulations, 0 remembered", "0 simulations, 9 remembered"):
        assert main(["study", "byteps-servers", "--out", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "[1/1] byteps-servers" in out
        assert expected in out
        assert "no pictures: drawing them takes a Chromium" in out
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "study.md", "study.jsonl", "runs.jsonl"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure-12"], "recipe 'figure-12' is unknown; accepted: bandwidth, stack, gantt, bytescheduler-ps"),
        (["gantt", "--publish"], "--publish needs every recipe"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_a_checkout_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the recipes are in bench/ of a checkout"):
        from_checkout("bench.study.main", command="study", checkout=tmp_path)


def test_without_plotly_it_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("bench.study")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    for name in [name for name in sys.modules if name.startswith("plotly.")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["study", "gantt"]) == 2
    assert "pip install 'legato[bench]'" in capsys.readouterr().err
