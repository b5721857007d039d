"""Every block of the pages on PyTorch, as it stands there, on two ranks."""

import ast
import os
import re
import warnings
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import legato.torch as lg
from legato import compat
from tests.docs.blocks import MIGRATION, TORCH, Block, python_blocks
from tests.torch.crew import Crew

WIDTH = 32
SHARES = re.compile(r"\.schedule\(|Distributed|prepare\(")
"""What makes ranks train together."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, values: torch.Tensor) -> Any:
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def names() -> dict[str, Any]:
    """What a script has made by the time a block begins."""
    torch.manual_seed(0)
    model = Net()
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    return {
        "lg": lg,
        "nn": nn,
        "torch": torch,
        "partial": partial,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "batches": [(inputs, inputs[:, :2].sin()) for inputs in torch.randn(12, 8, WIDTH, generator=generator)],
        "loss_of": functional.mse_loss,
    }


def train(model: Any, optimizer: Any, batches: Any) -> None:
    for inputs, targets in batches:
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def weights(model: Any) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def alternatives(text: str) -> Iterator[str]:
    """A block that schedules the same model in several ways shows alternatives: each begins at its own call."""
    statements = [ast.get_source_segment(text, statement) or "" for statement in ast.parse(text).body]
    begins = [place for place, each in enumerate(statements) if each.startswith("lg.schedule(")]
    if len(begins) < 2:
        yield text
        return
    for begin, end in zip(begins, [*begins[1:], None], strict=True):
        yield "\n".join(statements[begin:end])


def follow(text: str, folder: str) -> list[list[float]]:
    """The weights after each alternative."""
    os.chdir(folder)
    if re.search(r"c10d|DistributedDataParallel", text) and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    lg.init()
    found = []
    for alternative in alternatives(text):
        given = names()
        if not SHARES.search(text):
            lg.schedule(given["model"], given["optimizer"])
            train(given["model"], given["optimizer"], given["batches"][:2])  # what a block in a loop begins after
            functional.mse_loss(given["model"](given["batches"][0][0]), given["batches"][0][1]).backward()
        with torch.compiler.set_stance("force_eager"):
            exec(alternative, given)
            if not isinstance(given["model"], nn.Module):
                return []  # a page on the simulator
            if "for inputs" not in alternative:
                train(given["model"], given["optimizer"], given["batches"])
        if not isinstance(given["model"], DistributedDataParallel):
            lg.unschedule(given["model"])
        found.append(weights(given["model"]))
    return found


@pytest.mark.parametrize("block", [each for each in python_blocks(TORCH) if "trainers" not in each.page], ids=str)
def test_block(crew: Crew, block: Block, tmp_path: Path) -> None:
    first, second = crew.run(follow, block.text, str(tmp_path))
    assert first == second


# ---- from other systems ----


def migrate(text: str) -> list[float]:
    """Scripts of others run by `legato.compat`, which is what the pages say of them."""
    compat.provide()
    given = names()
    exec(text, given)
    return weights(given["model"])


@pytest.mark.parametrize("page", MIGRATION)
def test_before_and_after_train_alike(crew: Crew, page: str) -> None:
    trained = [crew.run(migrate, block.text) for block in python_blocks([page])]
    assert len(trained) >= 2
    assert all(each == trained[0] for each in trained)
    assert trained[0][0] == trained[0][1]


# ---- trainers ----

TRAINERS = {"Lightning": "lightning", "Accelerate": "accelerate", "transformers.Trainer": "transformers"}


def by_lightning(text: str, folder: str) -> list[float]:
    import lightning.pytorch as lightning
    from torch.utils.data import DataLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = names()["model"]

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            del index
            return functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    make = partial(lightning.Trainer, max_epochs=1, accelerator="cpu", default_root_dir=folder, **quiet)
    given: dict[str, Any] = {"Trainer": make}
    exec(text, given)
    module = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers
        given["trainer"].fit(module, DataLoader(cast(Any, names()["batches"]), batch_size=None))
    return weights(module)


def by_accelerate(text: str, folder: str) -> list[float]:
    del folder
    from torch.utils.data import DataLoader, TensorDataset

    os.environ["ACCELERATE_USE_CPU"] = "true"
    given = names()
    inputs = torch.randn(48, WIDTH)
    given["loader"] = DataLoader(TensorDataset(inputs, inputs[:, :2].sin()), batch_size=4)
    exec(text, given)
    for inputs, targets in given["loader"]:
        given["optimizer"].zero_grad()
        given["accelerator"].backward(functional.mse_loss(given["model"](inputs), targets))
        given["optimizer"].step()
    found = weights(given["model"])
    given["accelerator"].free_memory()
    return found


def by_transformers(text: str, folder: str) -> list[float]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2Config, GPT2LMHeadModel, Seq2SeqTrainer, TrainingArguments

    from legato.integrations.transformers import LegatoTrainerMixin

    torch.manual_seed(0)
    data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(16, (8, 4))]
    settings: dict[str, Any] = {"use_cpu": True, "max_steps": 2, "report_to": "none", "disable_tqdm": True}
    given: dict[str, Any] = {
        "model": GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=4, n_embd=16, n_layer=1, n_head=1)),
        "training_arguments": TrainingArguments(output_dir=folder, save_strategy="no", **settings),
        "train": data,
        "test": data,
        "Seq2SeqTrainer": Seq2SeqTrainer,
    }
    exec(text, given)
    if "trainer" not in given:  # the block that makes a trainer of one's own
        assert issubclass(given["LegatoSeq2SeqTrainer"], LegatoTrainerMixin)
        return []
    return weights(given["trainer"].model)


def drive(heading: str, text: str, folder: str) -> list[float]:
    lg.init()
    try:
        way = {"Lightning": by_lightning, "Accelerate": by_accelerate, "transformers.Trainer": by_transformers}[heading]
        return way(text, folder)
    finally:
        if heading != "Lightning":  # Accelerate's state is the process's; the next test of this process starts anew
            from accelerate.state import AcceleratorState, GradientState

            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()


@pytest.mark.parametrize("block", python_blocks(["docs/trainers.md"]), ids=str)
def test_trainer(crew: Crew, block: Block, tmp_path: Path) -> None:
    if find_spec(TRAINERS[block.heading]) is None:
        pytest.skip(f"needs {TRAINERS[block.heading]}")
    first, second = crew.run(drive, block.heading, block.text, str(tmp_path))
    assert first == second
