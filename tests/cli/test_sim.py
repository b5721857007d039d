"""`legato sim` as a user calls it."""

import json
from pathlib import Path

import pytest

from legato.cli import main
from legato.core.policies import POLICIES
from legato.sim.zoo import workload


def test_json_has_what_a_script_needs(capsys: pytest.CaptureFixture[str]) -> None:
    command = "sim --model vgg16 --workers 8 --gbps 10 --arch ps --policy bytescheduler --partition 4MB --credit 16MB"
    assert main([*command.split(), "--latency", "20us", "--overhead", "50us", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert set(row) == {
        *("iteration_s", "bound_s", "ratio", "compute_s", "communication_s", "exposed_s"),
        *("policy", "arch", "workers", "gbps"),
    }
    assert row["ratio"] == pytest.approx(row["iteration_s"] / row["bound_s"])
    assert (row["policy"], row["arch"], row["workers"], row["gbps"]) == ("bytescheduler", "ps", 8, 10)


def test_all_policies_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--policy", "all", "--model", "alexnet"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in POLICIES)
    assert "T*" in out


def test_servers_default_to_the_mixed_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for options in (["--servers", "4"], ["--servers", "4", "--deployment", "mixed"], []):
        assert main(["sim", "--model", "alexnet", "--json", *options]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["communication_s"])
    assert seconds[0] == seconds[1] < seconds[2]


def test_a_workload_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.json"
    path.write_text(workload("alexnet").to_json())
    assert main(["sim", "--model", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compute_s"] == pytest.approx(workload("alexnet").compute_s)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gbps ten", "--gbps: 'ten' is not a rate such as 10, 10Gbps or 500Mbps"),
        ("--partition 4XB", "--partition: '4XB' is not a size such as"),
        ("--credit -1", "--credit: '-1' is not a size such as"),
        ("--partition 0", "must be at least 1"),
        ("--latency 20", "--latency: '20' is not a duration such as"),
        ("--arch mesh", "--arch: 'mesh' is unknown; accepted: ps, allreduce, rsag"),
        ("--policy lifo", "policy 'lifo' is unknown; accepted: fifo"),
        ("--model vgg17", "model 'vgg17' is unknown; accepted: alexnet"),
        ("--model none.json", "No such file"),
        ("--workers 0", "workers=0 must be more than 0"),
        ("--workers many", "--workers"),
        ("--servers 2 --arch rsag", "has no servers"),
        ("--colour red", "--colour"),
    ],
)
def test_a_wrong_value_gets_one_line_and_exit_code_2(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
