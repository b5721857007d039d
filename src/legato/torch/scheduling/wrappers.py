"""Wrappers: what averages or shards a model's gradients itself must not be around a scheduled one.

Gradients averaged by two parties that know nothing of each other are wrong: each reads what the other is writing.
"""

import weakref
from collections.abc import Container
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from legato.errors import InputError


def check_unwrapped(model: nn.Module) -> None:
    """An InputError where the model is, or holds, a wrapper."""
    for module in model.modules():
        if hasattr(module, "require_backward_grad_sync"):  # torch's DDP, and ours
            raise averaged_twice(module)
        if hasattr(module, "_fsdp_wrapped_module"):
            raise InputError(
                "FullyShardedDataParallel shards this model's parameters; schedule a model that is whole, or one that "
                "fully_shard has spread over the ranks of a host"
            )


class Surroundings:
    """Notices torch's DDP around some parameters when it runs, whichever of the two came first."""

    def __init__(self, parameters: Container[nn.Parameter]) -> None:
        self._parameters = parameters
        self._others: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Whose parameters are not among ours."""

    def check(self) -> None:
        """An InputError in a forward pass of torch's DDP around one of the parameters."""
        running: Any = getattr(DistributedDataParallel, "_active_ddp_module", None)
        if running is None or running in self._others:
            return
        if any(parameter in self._parameters for parameter in running.module.parameters()):
            raise averaged_twice(running)
        self._others.add(running)


def averaged_twice(wrapper: nn.Module) -> InputError:
    kind = f"{type(wrapper).__module__}.{type(wrapper).__qualname__}"
    return InputError(
        f"this model is scheduled and inside {kind}, which averages its gradients, too; schedule the model itself and "
        "call it without the wrapper, or keep torch's wrapper without a schedule: "
        "ddp_model.register_comm_hook(lg.ddp_state(), lg.ddp_hook) has legato average for it; where "
        "transformers.Trainer or accelerate wrap the model, use legato.integrations' LegatoTrainer or LegatoAccelerator"
    )
