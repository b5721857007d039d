"""`legato config show`: every value with its origin."""

import json
from pathlib import Path

import pytest

from legato.cli import main
from legato.variables import SETTINGS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three levels at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEGATO_THREADS", "3")
    monkeypatch.setenv("BYTESCHEDULER_CREDIT", "1000")
    monkeypatch.setenv("LEGATO_KEY", "a spoken secret!")
    monkeypatch.setenv("LEGATO_LOG_LEVEL", "error")
    (tmp_path / "legato.toml").write_text("\ntimeout_s = 9\n")
    return tmp_path


def test_it_prints_each_value_with_its_origin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == 0
    shown = capsys.readouterr().out
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.splitlines()[: len(SETTINGS) + 1]}
    assert rows.keys() == {"setting", *SETTINGS}
    assert rows["threads"] == "3 LEGATO_THREADS"
    assert rows["credit_bytes"] == "4000 BYTESCHEDULER_CREDIT"
    assert rows["timeout_s"] == f"9.0 {folder}/legato.toml:2"
    assert rows["heartbeat_s"] == "5.0 default"
    assert rows["fusion_bytes"] == "(the plan's) default"
    assert rows["key"] == "(not shown) LEGATO_KEY"
    assert rows["log_level"] == "error LEGATO_LOG_LEVEL"
    assert "secret" not in shown
    assert "BYTESCHEDULER_CREDIT is taken for LEGATO_CREDIT_BYTES=4000\nrank 0 of 1, told by nobody\n" in shown


def test_the_same_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row.pop("name"): row for row in told["settings"]}
    assert rows.keys() == SETTINGS.keys()
    assert rows["threads"] == {
        "variable": "LEGATO_THREADS",
        "value": 3,
        "origin": "environment",
        "where": "LEGATO_THREADS",
    }
    assert rows["timeout_s"]["where"] == f"{folder}/legato.toml:2"
    assert rows["shared_memory"] == {
        "variable": "LEGATO_SHARED_MEMORY",
        "value": True,
        "origin": "default",
        "where": None,
    }
    assert told["warnings"] == ["BYTESCHEDULER_CREDIT is taken for LEGATO_CREDIT_BYTES=4000"]


def test_a_mistake_gets_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LEGATO_THREAD", "3")
    assert main(["config", "show"]) == 2
    assert capsys.readouterr().err == (
        "legato: LEGATO_THREAD is not a variable of legato; did you mean LEGATO_THREADS?\n"
    )
