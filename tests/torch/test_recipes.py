"""Every block of docs/recipes.md, as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import legato.torch as lg
from legato.torch.scheduling.hooks import Schedule
from tests.torch.crew import Crew

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
RECIPES: dict[str, str] = dict(re.findall(r"^## (.+?)$.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)])
        self.head = nn.Linear(6, 2)

    def forward(self, values: torch.Tensor) -> Any:
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def follow(recipe: str) -> tuple[float, float, bool, list[float], list[float]]:
    """The loss before and after, whether updates are due at the end, the weights, and their average if there is one."""
    lg.init()
    torch.manual_seed(0)
    model = Net()
    generator = torch.Generator().manual_seed(lg.rank())
    batches = [(inputs, inputs[:, :2].sin()) for inputs in torch.randn(24, 8, 6, generator=generator)]
    names: dict[str, Any] = {
        "lg": lg,
        "nn": nn,
        "torch": torch,
        "model": model,
        "batches": batches,
        "backend": "aot_eager",
        "loss_of": functional.mse_loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.2),
    }
    inputs, targets = (torch.cat(each) for each in zip(*batches, strict=True))
    before = functional.mse_loss(model(inputs), targets).item()
    exec(recipe, names)
    [schedule] = [Schedule.of(names["model"])]
    is_due = any(each.due is not None for each in schedule._parameters.all)
    after = functional.mse_loss(names["model"](inputs), targets).item()
    weights = torch.cat([parameter.detach().flatten() for parameter in names["model"].parameters()])
    averaged = names["ema"].module.parameters() if "ema" in names else []
    return before, after, is_due, weights.tolist(), [value for each in averaged for value in each.flatten().tolist()]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(crew: Crew, name: str) -> None:
    first, second = crew.run(follow, RECIPES[name])
    before, after, is_due, *weights = first
    assert after < before
    assert weights == list(second[3:])
    # Only there the last line reads the weights.
    assert is_due == (name != "Averaged weights (EMA)")


def test_every_block_is_run() -> None:
    assert len(RECIPES) == PAGE.count("```python") == 8
