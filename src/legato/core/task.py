"""Tensors, declared once, and tasks: the synchronisation of one tensor in one step."""

from dataclasses import dataclass
from typing import NamedTuple

from legato.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """What the core knows of a tensor. Its index is its place in the sequence the scheduler is made with."""

    name: str
    """Unique name, for messages and traces."""
    num_bytes: int
    """Size of the gradient."""
    priority: int
    """Position of the tensor's first use in the forward pass; 0 is the most urgent."""
    item_bytes: int = 4
    """Size of one element; parts are cut at its multiples."""

    def __post_init__(self) -> None:
        if self.item_bytes < 1 or self.num_bytes < 0 or self.num_bytes % self.item_bytes:
            raise InputError(
                f"tensor {self.name!r}: num_bytes={self.num_bytes} must be a multiple of item_bytes={self.item_bytes}"
            )


class Task(NamedTuple):
    """The synchronisation of one tensor in one step."""

    step: int
    tensor: int
