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


class _LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, values: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        normal = self.before_attention(values)
        query, key, value = (
            each(normal).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            _turned(query, turns), _turned(key, turns), value, is_causal=True
        )
        values = values + self.out(mixed.transpose(1, 2).flatten(2))
        normal = self.before_mlp(values)
        result: torch.Tensor = values + self.down(functional.silu(self.gate(normal)) * self.up(normal))
        return result


def _turned(values: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary positions: pairs of values, turned by an angle that grows with the place."""
    pairs = torch.view_as_complex(values.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(values.dtype)


class Llama(nn.Module):
    """A language model as in Touvron et al. 2023, with a head of its own: 134 million parameters by default."""

    def __init__(
        self, *, vocabulary: int = 32_000, width: int = 768, heads: int = 12, hidden: int = 2048, depth: int = 12
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(_LlamaBlock(width, heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.pairs = width // heads // 2

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rates = 10_000.0 ** (-torch.arange(self.pairs, device=tokens.device) / self.pairs)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), rates)
        turns = torch.polar(torch.ones_like(angles), angles)
        values = self.tokens(tokens)
        for block in self.blocks:
            values = block(values, turns)
        logits: torch.Tensor = self.head(self.norm(values))
        return logits


@dataclass(frozen=True)
class Task:
    """A model and the batch that its paper trains with."""

    make: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]
    classes: int
    is_text: bool
    mixed: bool = False
    """Trained as language models are today: bf16 autocast and fused AdamW; otherwise float32 and SGD."""

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
    "llama": Task(Llama, 4, (1024,), 32_000, True, mixed=True),
}
