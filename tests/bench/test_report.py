"""What a measurement tells, and what it exits with."""

import json
from pathlib import Path

import pytest

from bench.report import Figure, publish


def test_a_figure_is_told_word_by_word_in_a_line_a_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = "pip install [torch]"
    figure = Figure(section="shop", case=case, value=2.0, unit="s", at_most=3.0)
    assert publish([figure], tmp_path / "rows.jsonl") == 0
    line, *table = capsys.readouterr().out.splitlines()
    assert line == f"shop: {case}: 2 s met"
    assert any(case in row for row in table)
    assert json.loads((tmp_path / "rows.jsonl").read_text())["case"] == case


def test_a_missed_target_is_an_exit_code() -> None:
    figures = [Figure(section="shop", case="price", value=value, unit="", at_least=1.0) for value in (0.5, 1.0)]
    assert publish(figures[1:], None) == 0
    assert publish(figures, None) == 1
