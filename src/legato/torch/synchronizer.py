"""The seam between the hooks and what moves gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the order of gradients: one parameter of the schedule."""

    name: str
    """The parameter's name in the model; the same on every rank."""
    parameter: torch.nn.Parameter
    is_sparse: bool = False
    """Its gradients are rows: of an embedding that says so."""


class Synchronizer(Protocol):
    """Averages gradients over all ranks, each as soon as it can. Indices are those of the slots it was made with."""

    def submit(self, index: int, gradient: torch.Tensor | None) -> None:
        """Take a gradient, in place; None where this rank has none. Its memory is the synchronizer's until `wait`."""

    def poll(self, index: int) -> bool:
        """Whether `wait` would return at once."""

    def wait(self, index: int) -> bool:
        """Wait until the average is in the gradient's memory; False when no rank had one."""

    def result(self, index: int) -> torch.Tensor:
        """The averaged gradient, after `wait` was true: the tensor submitted, or a new one where there was none."""

    def set_order(self, order: Sequence[int]) -> None:
        """Priorities from the observed order of first use: the most urgent index first."""

    def close(self) -> None:
        """Let go of the slots; nothing is under way."""
