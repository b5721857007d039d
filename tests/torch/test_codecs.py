"""Scheduled models whose gradients travel through codecs."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import legato.torch as lg
from legato.errors import InputError
from tests.torch.crew import Crew

STEPS = 40


def trained(compression: Any) -> tuple[float, list[float]]:
    """The loss after some steps, and the weights."""
    job = lg.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lg.schedule(model, optimizer, compression=compression, min_compress_bytes=0)
    teacher = torch.randn(16, 4)
    torch.manual_seed(1 + job.rank)
    loss = torch.zeros(())
    for _ in range(STEPS):
        inputs = torch.randn(32, 16)
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), inputs @ teacher)
        loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.flatten() for parameter in model.parameters()])
    return loss.item(), weights.tolist()


SCHEMES: dict[str, Any] = {
    "fp16+ef": "fp16+ef",
    "onebit+ef": "onebit+ef",
    "topk:0.1+ef": "topk:0.1+ef",
    "randomk:0.2+ef": "randomk:0.2+ef",
    "dithering:7+ef": "dithering:7+ef",
    "int8+ef": "int8+ef",
    "patterns": {"0.*": "none", "*": "bf16"},
    "BytePS's": {"compressor": "topk", "k": 0.1, "ef": "vanilla"},
}


def test_models_stay_equal_and_learn(crew: Crew) -> None:
    plain, _ = crew.run(trained, None)[0]
    for scheme in SCHEMES.values():
        (loss, weights), (_, other) = crew.run(trained, scheme)
        assert weights == other
        assert loss < 2 * plain


def refused(compression: Any, **options: Any) -> str:
    lg.init()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).double())
    try:
        lg.schedule(model, torch.optim.SGD(model.parameters()), compression=compression, **options)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("compression", "why"),
    [
        ("zip", "codec 'zip' is unknown"),
        ("topk:2", "'1.weight' is float64, but compression topk:2 is for float32"),
        ({"1.*": "none", "*": "topk:5"}, "'0.bias': codec topk: k is 5, but the tensor has 4 items"),
    ],
)
def test_bad_choices_are_said_on_every_rank(crew: Crew, compression: Any, why: str) -> None:
    for message in crew.run(_refused_small, compression):
        assert why in message


def _refused_small(compression: Any) -> str:
    return refused(compression, min_compress_bytes=0)


def _refused_over_c10d() -> str:
    return refused("topk:0.1", transport="c10d")


def test_codecs_need_the_native_transport(crew: Crew) -> None:
    for message in crew.run(_refused_over_c10d):
        assert "codecs need transport native" in message
