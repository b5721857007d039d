"""Every block of docs/recipes.md, as it stands there."""

import importlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import legato.torch as lg
from legato.torch.scheduling.hooks import Schedule
from tests.docs.blocks import RECIPES as RECIPES_PAGE
from tests.docs.blocks import python_blocks
from tests.torch.crew import Crew

BLOCKS = python_blocks(RECIPES_PAGE)
RECIPES = {block.heading: block.text for block in BLOCKS}


WIDTH = 64
"""Of the model: its weights are just large enough for states of 8 bits."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 2)

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
    batches = [(inputs, inputs[:, :2].sin()) for inputs in torch.randn(24, 8, WIDTH, generator=generator)]
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


def follow_uncompiled(recipe: str) -> tuple[float, float, bool, list[float], list[float]]:
    """What torchao compiles for each shape takes half a minute, and computes the same."""
    with torch.compiler.set_stance("force_eager"):
        return follow(recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(crew: Crew, name: str) -> None:
    if "torchao" in RECIPES[name]:
        pytest.importorskip("torchao", reason="torchao, whose 8-bit optimizers this recipe uses, is not installed")
        first, second = crew.run(follow_uncompiled, RECIPES[name])
    else:
        first, second = crew.run(follow, RECIPES[name])
    before, after, is_due, *weights = first
    assert after < before
    assert weights == list(second[3:])
    # Only there the last line reads the weights.
    assert is_due == (name != "Averaged weights (EMA)")


def train_in_8_bits(system: str) -> tuple[list[float], set[str]]:
    """The weights after some steps, and the types of the states."""
    lg.init()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = Net()
    optimizer = importlib.import_module("torchao.optim").AdamW8bit(model.parameters(), lr=0.01)
    if system == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        lg.schedule(model, optimizer, transport=system)
    generator = torch.Generator().manual_seed(lg.rank())
    with torch.compiler.set_stance("force_eager"):
        for inputs in torch.randn(5, 8, WIDTH, generator=generator):
            optimizer.zero_grad()
            functional.mse_loss(model(inputs), inputs[:, :2].sin()).backward()
            optimizer.step()
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    return weights, {type(state["exp_avg"]).__name__ for state in optimizer.state.values()}


def compare_in_8_bits() -> tuple[bool, set[str]]:
    expected, _ = train_in_8_bits("ddp")
    weights, kinds = train_in_8_bits("native")
    return weights == expected, kinds


def test_states_of_8_bits_give_ddps_weights(crew: Crew) -> None:
    pytest.importorskip("torchao", reason="torchao, whose 8-bit optimizers are compared, is not installed")
    for is_equal, kinds in crew.run(compare_in_8_bits):
        assert is_equal
        assert "OptimState8bit" in kinds


def test_every_block_is_run() -> None:
    assert len(RECIPES) == len(BLOCKS) == 12
