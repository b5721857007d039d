"""The models of the examples have the weights that the simulator's zoo says they have."""

import runpy
from pathlib import Path

import pytest
import torch

from legato.sim import zoo

MODELS = runpy.run_path(str(Path(__file__).parent.parent.parent / "examples" / "models.py"))


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "vgg16"])
def test_parameters_of_the_zoo(name: str) -> None:
    with torch.device("meta"):
        model = MODELS["IMAGE_MODELS"][name]()
    assert sum(parameter.numel() for parameter in model.parameters()) == zoo.workload(name).num_bytes // 4


def test_gpt_uses_its_token_weights_at_both_ends() -> None:
    with torch.device("meta"):
        model = MODELS["GPT"](vocabulary=256, length=16, width=8, heads=2, depth=1)
    assert model.head.weight is model.tokens.weight
