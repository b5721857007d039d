"""The mode of synchronisation: how closely the ranks of a scheduled model stay together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato.compression import Selection
from legato.errors import InputError, MismatchError
from legato.observe.clock import Gatherer
from legato.torch.compression import Compression, Compressor
from legato.torch.sync.routes import Route
from legato.tuning.candidate import NATIVE

MakeOptimizer = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]
"""An optimizer of these tensors, as `partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)` makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncMode:
    """What ranks wait for; the default is each other's gradients, in every step."""

    staleness: int = 0
    """How many steps a rank may be ahead of the slowest; with 1 or more, changes of weights travel, not gradients."""
    local_steps: int = 1
    """Steps that a rank takes alone before the changes of the weights are averaged; 1 averages gradients instead."""
    outer: MakeOptimizer | None = None
    """What applies these averages; None adds them to the weights."""

    backups: int = 0
    """Ranks that a step need not wait for: the average is of those whose gradients came first."""

    def __post_init__(self) -> None:
        _check_whole("backups", self.backups, at_least=0)
        _check_whole("staleness", self.staleness, at_least=0)
        _check_whole("local_steps", self.local_steps, at_least=1)
        if self.staleness and self.local_steps > 1:
            raise InputError(
                f"staleness={self.staleness} and local_steps={self.local_steps} do not go together; give one of them"
            )
        if self.backups and (self.staleness or self.local_steps > 1):
            raise InputError(
                f"backups={self.backups} are for gradients, but with staleness={self.staleness} and "
                f"local_steps={self.local_steps} they stay at home; give one of them"
            )
        if self.outer is not None and self.local_steps == 1:
            raise InputError("outer steps what local_steps have changed; give local_steps, 2 or more")

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients travel, and not what each rank's optimizer has made of its own."""
        return self.staleness == 0 and self.local_steps == 1

    def check(self, route: Route, compressor: type[Compressor], selection: Selection) -> None:
        """An InputError where it does not go with how gradients travel."""
        is_native, size = route.transport == NATIVE, route.group.size
        where = "transport native: a process group waits for all of its ranks"
        if self.staleness and not is_native:
            raise InputError(f"staleness={self.staleness} needs {where}")
        if self.staleness and (selection.schemes or compressor is not Compression.none):
            raise InputError(
                f"staleness={self.staleness} does not go with compression: what is lost once is lost in every total"
            )
        if self.backups and not is_native:
            raise InputError(f"backups={self.backups} need {where}")
        if self.backups and selection.schemes:
            raise InputError(f"backups={self.backups} do not go with codecs; compression is none, fp16 or bf16")
        if self.backups >= size:
            raise InputError(f"backups is {self.backups}; accepted is 0 to {size - 1} in a job of {size}")

    def words(self) -> str:
        """What every rank must say, in one line."""
        chosen = [f"staleness={self.staleness}"] if self.staleness else []
        chosen += [f"local_steps={self.local_steps}"] if self.local_steps > 1 else []
        chosen += [f"outer={_described(self.outer)}"] if self.outer is not None else []
        chosen += [f"backups={self.backups}"] if self.backups else []
        return ", ".join(chosen) or "synchronous"


def agree_on(group: Gatherer, name: str, words: str) -> None:
    """A MismatchError on every rank where they differ: who counts otherwise would wait for what nobody sends."""
    line = np.frombuffer(f"{words}\n".encode(), np.uint8).copy()
    said = group.allgather(name, line).tobytes().decode().splitlines()
    for rank, words in enumerate(said):
        if words != said[0]:
            raise MismatchError(f"schedule: rank 0 says {said[0]}, rank {rank} says {words}", rank=rank)


def _check_whole(name: str, value: Any, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InputError(f"{name} is {value!r}; accepted is a whole number from {at_least} on")


def _described(outer: MakeOptimizer) -> str:
    """The optimizer that it makes, with its hyper-parameters."""
    made = outer([torch.zeros(1)])
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"outer makes a {type(made).__name__}; accepted is what makes a torch.optim.Optimizer")
    values = ", ".join(f"{key}={value}" for key, value in sorted(made.defaults.items()))
    return f"{type(made).__name__}({values})"
