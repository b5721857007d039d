"""What is attached to a user's objects, so that it stays behind when they are copied and out of compiled graphs."""

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, Protocol

import torch
from torch import nn


class Inert:
    """A hook. In a copy or a pickle of a model it does nothing: a copied model is a plain model."""

    def __init__(self, call: Callable[..., Any] | None = None, *bound: Any) -> None:
        self._call = call
        self._bound = bound
        self._hidden: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._call is None:
            return None
        # What a hook does is part of no graph; it is hidden only from a compiler at work, which takes longer than most.
        if torch.compiler.is_compiling():
            if self._hidden is None:
                self._hidden = torch.compiler.disable(self._call)
            return self._hidden(*self._bound, *arguments, **keywords)
        return self._call(*self._bound, *arguments, **keywords)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Inert":
        del memo
        return Inert()

    def __reduce__(self) -> tuple[type["Inert"], tuple[()]]:
        return Inert, ()


class Flushable(Protocol):
    def flush(self) -> None:
        """Bring the weights up to date."""


_OWNER = "_legato"


class _Owner(Inert):
    """Who keeps a model's weights up to date; nobody does for a copy."""

    def __init__(self, owner: Flushable | None = None) -> None:
        super().__init__(None if owner is None else owner.flush)
        self.owner = owner


def set_owner(model: nn.Module, owner: Flushable) -> None:
    setattr(model, _OWNER, _Owner(owner))


def remove_owner(model: nn.Module) -> None:
    delattr(model, _OWNER)


def cover_parameters(model: nn.Module) -> None:
    """Make `named_parameters`, and with it `parameters`, of a model with an owner flush first: who reads weights reads
    them fresh."""
    # A bound method of that name, as it was: copying and pickling bind the copy's own.
    model.named_parameters = MethodType(named_parameters, model)  # type: ignore[method-assign]


def uncover_parameters(model: nn.Module) -> None:
    del model.named_parameters


def owner_of(model: nn.Module) -> Flushable | None:
    """Who keeps the model's weights up to date."""
    attached = vars(model).get(_OWNER)
    return attached.owner if isinstance(attached, _Owner) else None


def named_parameters(model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    vars(model)[_OWNER]()
    return type(model).named_parameters(model, *arguments, **keywords)


def cover_step(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
    """Have `optimizer.step(closure=None)` call `step(closure)` instead, on this one object: what it called before."""
    whole_step = optimizer.step

    def covering(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        del optimizer
        return step(closure)

    # A bound method with the marks of the one it covers: LR schedulers take it apart and look for theirs.
    update_wrapper(covering, whole_step)
    optimizer.step = MethodType(covering, optimizer)  # type: ignore[method-assign]
    return whole_step


def uncover_step(optimizer: torch.optim.Optimizer) -> None:
    vars(optimizer).pop("step")
