"""`legato tune` as a user calls it."""

import json
from pathlib import Path

import pytest

from legato.cli import main
from legato.core import Plan
from legato.sim.zoo import workload


def test_the_best_plan_and_a_map(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "resnet50", "--gbps", "5", "--workers", "4"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "resnet50 on 4 workers, 5 Gbit/s: " in out
    assert "faster than wfbp over " in out
    assert "the best over " in out
    assert "over native: ms a step" in out
    assert "over c10d: ms a step" in out


def test_the_transport_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "alexnet", "--transport", "c10d"]) == 0
    out = capsys.readouterr().out
    assert "over c10d: ms a step" in out
    assert "native" not in out


def test_a_map_is_shown_where_nothing_beats_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "alexnet", "--gbps", "400", "--overhead", "100ms"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "wfbp over c10d, " in out
    assert "0.0% faster than wfbp over c10d" in out
    assert "over native: ms a step" in out


def test_the_native_engine_is_recommended_with_what_it_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own parts of 256 KiB cost it nothing that is worth another size: the model that live tuning has as well."""
    assert main(["tune", "vgg16", "--gbps", "10", "--workers", "8", "--transport", "native", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    native = [row for row in rows if row["transport"] == "native"]
    scheduled = [row for row in native if row["policy"] != "wfbp"]
    assert {row["policy"] for row in scheduled} == {"bytescheduler"}
    assert {row["credit_bytes"] // row["partition_bytes"] for row in scheduled} == {16}
    seconds = {row["partition_bytes"]: row["iteration_s"] for row in scheduled}
    assert seconds[256 << 10] <= 1.05 * min(seconds.values())


def test_the_plan_can_be_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert main(["tune", "resnet50", "--transport", "native", "--out", str(path)]) == 0
    plan = Plan.from_json(path.read_text())
    plan.check(workload("resnet50").tensors)
    assert plan.policy.startswith("pushfirst"), "what schedule() has the engine do"
    assert plan.credit_bytes == 16 * (plan.largest_partition_bytes or 0)
    assert not plan.flat, "the engine copies nothing together"


def test_json_has_every_plan_the_best_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(workload("alexnet").to_json())
    assert main(["tune", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert set(rows[0]) == {"transport", "policy", "partition_bytes", "credit_bytes", "iteration_s"}
    assert [row["iteration_s"] for row in rows] == sorted(row["iteration_s"] for row in rows)
    assert "wfbp" in {row["policy"] for row in rows}


def test_training_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "train", str(tmp_path), "--samples", "256", "--epochs", "1", "--processes", "1"]
    assert main([*command, "--device", "cpu"]) == 0
    assert "relative_error_median" in capsys.readouterr().out
    assert (tmp_path / "autobyte.safetensors").exists()


def test_fine_tuning_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.tuning.autobyte.refine.NUM_SIMULATED", 256)
    assert main(f"tune train {tmp_path} --samples 256 --epochs 1 --processes 1 --device cpu".split()) == 0
    job = {
        "num_bytes": 25e6,
        "compute_s": 0.3,
        "workers": 4,
        "gbps": 1.0,
        "plans": [["bytescheduler", 65536, 65536, 0.4]],
    }
    plans = tmp_path / "plans.json"
    plans.write_text(json.dumps([{"model": model, **job} for model in ("vgg16", "gpt2")]))
    capsys.readouterr()
    assert main(["tune", "refine", str(tmp_path), str(plans), "--processes", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_plans"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("vgg17", "model 'vgg17' is unknown"),
        ("vgg16 --transport nccl", "--transport 'nccl' is unknown; accepted: native, c10d, any"),
        ("none.json", "No such file"),
        ("vgg16 --gbps fast", "--gbps: 'fast' is not a rate"),
        ("vgg16 --servers 2 --transport c10d", "has no servers"),
    ],
)
def test_mistakes_get_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
