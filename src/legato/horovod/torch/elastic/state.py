"""The state of a PyTorch script: models, optimizers, and whatever else has a state_dict; plain values beside them."""

import copy
from typing import Any, Protocol, runtime_checkable

import torch

from legato.horovod.common.elastic import ObjectState
from legato.torch import api
from legato.torch.compat.objects import broadcast_object, broadcast_optimizer_state, broadcast_parameters


@runtime_checkable
class Stateful(Protocol):
    """Learning rate schedulers, samplers, gradient scalers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class StateHandler:
    """Keeps what a state_dict says of an object."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy: an optimizer would go on with these very tensors.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Tensors travel into their places."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    """An optimizer's state may still be empty on some ranks."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


def _handler(value: Any) -> StateHandler | None:
    if isinstance(value, torch.nn.Module):
        return ModelStateHandler(value)
    if isinstance(value, torch.optim.Optimizer):
        return OptimizerStateHandler(value)
    return StateHandler(value) if isinstance(value, Stateful) else None


class TorchState(ObjectState):
    """A script's state: each keyword is an attribute. What has a `state_dict` is kept and synchronised by that,
    anything else as a plain value."""

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler(value) for name, value in given.items()}
        self._handlers = {name: handler for name, handler in handlers.items() if handler is not None}
        plain = {name: value for name, value in given.items() if name not in self._handlers}
        super().__init__(broadcast_object, api.rank, **plain)
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = vars(self).get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)
