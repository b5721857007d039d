"""Real models with the batches that their papers train with."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from examples.models import GPT, resnet50, vgg16


class Bert(nn.Module):
    """BERT-large as in Devlin et al. 2019: 24 blocks of width 1024, and a head that shares the word embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30_522, 1024)
        self.positions = nn.Embedding(512, 1024)
        block = nn.TransformerEncoderLayer(1024, 16, 4096, activation="gelu", batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(block, 24, enable_nested_tensor=False)
        self.transform = nn.Linear(1024, 1024)
        self.norm = nn.LayerNorm(1024)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.words(tokens) + self.positions(places))
        return functional.linear(self.norm(functional.gelu(self.transform(hidden))), self.words.weight)


@dataclass(frozen=True)
class Task:
    """A model and the batch that its paper trains with."""

    make: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]
    classes: int
    is_text: bool

    def samples(self) -> int:
        return self.batch * self.shape[0] if self.is_text else self.batch

    def data(self, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels."""
        if self.is_text:
            tokens = torch.randint(self.classes, (self.batch, *self.shape), device=device)
            return tokens, tokens
        images = torch.randn(self.batch, *self.shape, device=device)
        return images, torch.randint(self.classes, (self.batch,), device=device)


def _gpt2() -> nn.Module:
    return GPT(vocabulary=50_257, length=1024, width=768, heads=12, depth=12)


TASKS = {
    "vgg16": Task(vgg16, 32, (3, 224, 224), 1000, False),
    "resnet50": Task(resnet50, 64, (3, 224, 224), 1000, False),
    "bert-large": Task(Bert, 32, (128,), 30_522, True),
    "gpt2": Task(_gpt2, 4, (1024,), 50_257, True),
}
