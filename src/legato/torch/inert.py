"""What is attached to a user's objects, so that it stays behind when they are copied and out of compiled graphs."""

from collections.abc import Callable
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


def cover_parameters(model: nn.Module, owner: Flushable) -> None:
    """Make a model's `named_parameters`, and with it `parameters`, flush first: who reads weights reads them fresh."""
    setattr(model, _OWNER, _Owner(owner))
    # A bound method of that name, as it was: copying and pickling bind the copy's own.
    model.named_parameters = MethodType(named_parameters, model)  # type: ignore[method-assign]


def uncover_parameters(model: nn.Module) -> None:
    del model.named_parameters
    delattr(model, _OWNER)


def owner_of(model: nn.Module) -> Flushable | None:
    """Whoever covered the model's parameters."""
    attached = vars(model).get(_OWNER)
    return attached.owner if isinstance(attached, _Owner) else None


def named_parameters(model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    vars(model)[_OWNER]()
    return type(model).named_parameters(model, *arguments, **keywords)
