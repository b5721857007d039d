"""Texts between the ranks of a process group, when nothing else is under way on it.

Texts travel as bytes in uint8 tensors: what arrives from a socket is read as JSON, never unpickled.
"""

import torch
import torch.distributed as dist

from legato.transports.c10d.collectives import all_gather


class TextExchange:
    """Collective calls: every rank makes the same ones in the same order."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._rank = group.rank()
        self._size = group.size()

    def exchange(self, text: str) -> list[str]:
        """What every rank says, by rank."""
        words = self._words(text.encode())
        lengths = torch.empty(self._size, dtype=torch.int64, device=self._device)
        all_gather(lengths, torch.tensor([words.numel()], device=self._device), self._group)
        longest = int(lengths.max())
        mine = words.new_zeros(longest)
        mine[: words.numel()] = words
        everything = words.new_empty(self._size * longest)
        all_gather(everything, mine, self._group)
        rows = everything.view(self._size, longest).cpu()
        return [bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths.tolist(), strict=True)]

    def broadcast(self, text: str | None, root: int = 0) -> str:
        """What the root says; the others give None."""
        words = self._words(b"" if text is None else text.encode())
        length = torch.tensor([words.numel()], device=self._device)
        dist.broadcast(length, group_src=root, group=self._group)
        if self._rank != root:
            words = words.new_empty(int(length))
        if words.numel():
            dist.broadcast(words, group_src=root, group=self._group)
        return bytes(words.tolist()).decode()

    def _words(self, data: bytes) -> torch.Tensor:
        return torch.tensor(list(data), dtype=torch.uint8, device=self._device)
