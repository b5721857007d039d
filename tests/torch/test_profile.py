"""Profiles: layers, bytes and times of models, on a clock that goes on by one second whenever somebody looks."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench import profile_zoo
from legato.cli import main
from legato.core import Layer, Workload
from legato.errors import InputError
from legato.torch.tuning.profile import ProfileConfig, mean_of_outputs, profile

ONCE = ProfileConfig(warmup=1, passes=1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr("legato.torch.tuning.clock.time.monotonic_ns", lambda: next(seconds) * 10**9)


def test_a_layer_lasts_until_the_next_begins() -> None:
    """begin a b loss | b.bias b.weight a.bias a.weight end, one second apart; the first forward has two to itself."""
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3, bias=False), nn.ReLU())
    assert profile("small", model, torch.ones(1, 4), config=ONCE) == Workload(
        "small", (Layer("0", 4 * (8 + 2), 2.0, 3.0), Layer("2", 4 * 6, 1.0, 1.0))
    )
    assert not any(module._forward_pre_hooks for module in model.modules())


class Tied(nn.Module):
    """The same weights at both ends, one layer twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        self.unused = nn.Linear(4, 4)
        self.twice = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        return {"logits": self.head(self.twice(self.twice(self.tokens(tokens))))}


def test_bytes_travel_with_the_first_use() -> None:
    measured = profile("tied", Tied(), {"tokens": torch.tensor([1, 2])}, config=ONCE)
    assert [(layer.name, layer.num_bytes) for layer in measured.layers] == [
        ("tokens", 4 * 5 * 4),
        ("twice", 4 * 4 * 4),
        ("twice#2", 0),
        ("head", 0),
    ]


class Attentive(nn.Module):
    """A parameter of its own, and an attention whose output weights are in a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.attention(values, values, values)[0]
        result: torch.Tensor = checkpoint(self.frozen, mixed * self.scale, use_reentrant=False)
        return result


def test_every_trained_parameter_belongs_to_a_layer() -> None:
    model = Attentive()
    measured = profile("attentive", model, (torch.ones(1, 3, 4),), config=ONCE)
    assert [(layer.name, layer.num_bytes) for layer in measured.layers] == [
        ("model", 4 * 4),
        ("attention", 4 * (12 * 4 + 12 + 4 * 4 + 4)),
        ("frozen", 0),
    ]


def test_what_cannot_be_profiled_is_said() -> None:
    with pytest.raises(InputError, match="has no parameters to train"):
        profile("relu", nn.ReLU(), torch.ones(1))
    with pytest.raises(InputError, match="returns no tensor that can be differentiated"):
        profile("fixed", nn.Linear(1, 1), torch.ones(1), loss=lambda output: mean_of_outputs(output.detach()))
    with pytest.raises(InputError, match="warmup=0 and passes=1 must be at least 1"):
        ProfileConfig(warmup=0, passes=1)


def make_small() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1)), torch.ones(1, 4)


def make_nothing() -> None:
    return None


def test_the_simulator_takes_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    target = f"{__name__}:make_small"
    assert main(["profile", target, "--device", "cpu", "--out", str(path)]) == 0
    assert "2 layers, 52B, forward" in capsys.readouterr().out
    assert main(["sim", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compute_s"] == Workload.from_json(path.read_text()).compute_s
    monkeypatch.chdir(tmp_path)
    assert main(["profile", target, "--device", "cpu"]) == 0
    assert (tmp_path / "make_small.json").read_text() == path.read_text()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("make_small", "'make_small' is not module:callable"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        (f"{__name__}:absent", "has no attribute 'absent'"),
        (f"{__name__}:ONCE", "is not callable"),
        (f"{__name__}:make_nothing", "must return a pair: a torch.nn.Module and its example inputs"),
    ],
)
def test_a_wrong_target_gets_one_line(target: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", target]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_profiles_of_the_zoo_without_the_native_module(tmp_path: Path) -> None:
    profile_zoo.main(
        [
            "--out",
            str(tmp_path),
            "--models",
            "alexnet",
            "--device",
            "cpu",
            "--batch",
            "1",
            "--warmup",
            "1",
            "--passes",
            "1",
        ]
    )
    measured = Workload.from_json((tmp_path / "alexnet.json").read_text())
    assert (len(measured.layers), measured.num_bytes) == (8, 4 * 61_100_840)
    assert json.loads((tmp_path / "environment.json").read_text())["batch"] == {"alexnet": 1}
