"""BytePS's optimizer and broadcasts: Horovod's, with fewer arguments and a prefix for names."""

import weakref
from typing import Any

import torch

from legato.torch.compat import objects, optimizer
from legato.torch.compat.objects import Parameters
from legato.torch.compat.optimizer import Distributed, NamedParameters, undistribute
from legato.torch.compression import Compression, Compressor


def DistributedOptimizer(  # noqa: N802 - BytePS's name
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
) -> torch.optim.Optimizer:
    """The optimizer, which averages gradients before it steps, and after `resume` among those who are there then."""
    names = None if named_parameters is None else list(named_parameters)
    made = _distributed(optimizer, names, compression, backward_passes_per_step)
    _names[made] = names
    return made


_distributed = optimizer.DistributedOptimizer
_names: "weakref.WeakKeyDictionary[torch.optim.Optimizer, list[tuple[str, torch.nn.Parameter]] | None]"
_names = weakref.WeakKeyDictionary()
"""Of every optimizer that `DistributedOptimizer` has given, in the order in which it has."""


def attach_again() -> None:
    """Have the optimizers of the job before average in the new one; every rank has made them in the same order."""
    for each, names in list(_names.items()):
        if isinstance(each, Distributed):
            given = undistribute(each)
            _distributed(each, names, given.compression, given.passes_per_step)


def broadcast_parameters(params: Parameters, root_rank: int, prefix: str = "Parameter.") -> None:
    """Overwrite tensors with the root's. `prefix` keeps names apart in BytePS; here they never meet."""
    del prefix
    objects.broadcast_parameters(params, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter.") -> None:
    """Make the optimizer's state and hyper-parameters those of the root."""
    del prefix
    objects.broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object."""
    return objects.broadcast_object(obj, root_rank, name)
