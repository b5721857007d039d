"""`legato doctor`: alone, with links as given, by `legato run`; its JSON and its mistakes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from legato.cli import main
from legato.core import Layer, Workload
from legato.variables import SETTINGS
from tests.programs import Programs

pytest.importorskip("torch")

TASK = Workload("mine", tuple(Layer(f"layer{place}", 1_000_000, 0.005, 0.01) for place in range(8)))
SCRIPT = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)), torch.zeros(4, 64)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model to profile, and one that has been."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(TASK.to_json())
    (tmp_path / "train.py").write_text(SCRIPT)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["doctor", *arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_with_links_as_given_it_measures_none(capsys: pytest.CaptureFixture[str]) -> None:
    document = told(capsys, "mine.json", "--workers", "4", "--gbps", "1", "--latency", "1ms", "--servers", "2")
    assert document.keys() == {"ranks", "links", "checks", "prognosis", "took_s", "settings"}
    assert [facts["rank"] for facts in document["ranks"]] == [0]
    assert document["links"]["num_hosts"] == 4
    assert (document["links"]["gbps"], document["links"]["latency_s"], document["links"]["flows"]) == (1.0, 1e-3, [])
    assert all(check.keys() == {"name", "status", "found", "advice"} for check in document["checks"])
    prognosis = document["prognosis"]
    assert (prognosis["model"], prognosis["num_bytes"]) == ("mine", 8_000_000)
    assert prognosis["compute_s"] == pytest.approx(0.12)
    assert [each["change"] for each in prognosis["outlooks"]] == [
        "DDP",
        "legato",
        "legato, 2 servers",
        "legato, fp16",
        "T*",
    ]
    assert all(each.keys() == {"change", "step_s", "error"} for each in prognosis["outlooks"])
    assert prognosis["advice"].keys() == {"use", "why"}
    assert {row["name"] for row in document["settings"]} == SETTINGS.keys()


def test_off_on_a_fast_link(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "mine.json", "--workers", "2", "--gbps", "400"]) == 0
    page = capsys.readouterr().out
    assert "recommended: off: legato" in page
    assert "400 Gbit/s between 2 hosts, as given; nothing measured" in page
    assert "every setting has its default" in page


def test_settings_that_are_not_default_are_shown_with_their_origin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEGATO_POLICY", "p3")
    assert main(["doctor", "--workers", "2", "--gbps", "10"]) == 0
    page = capsys.readouterr().out
    assert "policy   p3     LEGATO_POLICY" in page
    assert "no forecast: name a model" in page


def test_alone_it_starts_two_ranks_on_the_loopback_and_profiles_on_both(programs: Programs) -> None:
    command = ("-m", "legato.cli", "doctor", "train:make", "--device", "cpu", "--json")
    code, output, errors = programs.run(*command, cwd=Path.cwd())
    assert code == 0, errors
    document = json.loads(output)
    assert [facts["rank"] for facts in document["ranks"]] == [0, 1]
    links = document["links"]
    assert (links["num_workers"], links["num_hosts"], len(links["flows"])) == (2, 1, 2)
    assert links["gbps"] > 0
    assert links["engine_gbps"] > 0
    assert links["latency_s"] > 0
    names = {check["name"]: check for check in document["checks"]}
    assert names["network"]["status"] == "note"
    assert document["prognosis"]["model"] == "make"
    assert document["prognosis"]["num_bytes"] == 4 * (64 * 64 + 64 + 64 * 8 + 8)
    assert document["took_s"] < 120


def test_by_a_launcher_only_rank_0_speaks(programs: Programs) -> None:
    command = ("-m", "legato.cli", "run", "--nproc-per-node", "2", "-m", "legato.cli", "doctor", "mine.json")
    code, output, errors = programs.run(*command, cwd=Path.cwd())
    assert code == 0, errors
    assert output.count("ranks on 1 host, examined in") == 1
    assert "link of rank 1 to 0" in output
    assert "a step of mine: 8.0 MB of gradients, 120.0 ms of computation" in output
    assert "recommended: " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vgg17"], "model 'vgg17' is unknown"),
        (["gone.json"], "gone.json: No such file or directory"),
        (["train:gone"], "train:gone: module 'train' has no attribute 'gone'"),
        (["mine.json", "--gbps", "10"], "--workers and --gbps describe links together"),
        (["mine.json", "--workers", "4"], "--workers and --gbps describe links together"),
        (["mine.json", "--workers", "2", "--gbps", "fast"], "--gbps: 'fast' is not a rate"),
        (["mine.json", "--workers", "2", "--gbps", "0"], "--gbps: '0' is not more than 0"),
        (["mine.json", "--workers", "1", "--gbps", "1"], "Invalid value for '--workers'"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_the_environment_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    told(capsys, "--workers", "2", "--gbps", "10")
    assert dict(os.environ) == before
