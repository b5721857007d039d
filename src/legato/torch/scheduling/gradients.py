"""Gradients on their way: their states, and tensors that wait for their sum when somebody looks at them."""

from collections.abc import Callable
from enum import Enum, auto
from functools import cached_property
from typing import Any, Self

import torch

_DESCRIPTION = frozenset(
    {"device", "dtype", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_sparse", "itemsize", "layout", "nbytes"}
    | {"ndim", "names", "requires_grad", "shape", "_version"}
)
"""Attributes that say nothing of the values: reading them waits for nothing."""
_DESCRIBING = frozenset({"size", "dim", "numel", "stride", "is_contiguous", "element_size", "storage_offset"})


class GradientState(Enum):
    """Where a parameter's gradient is between two steps.

      ┌───────────────────── applied, or the round is over ◄─────────────────────┐
      ▼                                                                          │
    LOCAL ── backward or step(): submitted ──► IN_FLIGHT ── waited for ──► AVERAGED
                                                   ▲                             │
                                                   └── accumulated again ────────┘
    """

    LOCAL = auto()
    """This rank's own, or none; not submitted since the last step."""
    IN_FLIGHT = auto()
    """Submitted and not waited for: its memory is the synchronizer's."""
    AVERAGED = auto()
    """Waited for: its memory is ours again and holds the average, if any rank had a gradient."""


class Factor:
    """A number by which gradients are multiplied before anybody has them: what clipping and unscaling leave behind."""

    def __init__(self, find: Callable[[], float]) -> None:
        """`find` may wait for measures of gradients under way, but for no average."""
        self._find = find

    @cached_property
    def value(self) -> float:
        return self._find()


class Pending(torch.Tensor):
    """A tensor whose values are not known yet.

    Whoever uses them waits first, without knowing; whoever does not, never waits. `like` gives it its shape, and
    `settle` waits and gives the tensor to use.
    """

    _settle: Callable[[], torch.Tensor]

    @classmethod
    def of(cls, like: torch.Tensor, settle: Callable[[], torch.Tensor]) -> Self:
        # `_make_subclass` makes the same in three times the time, and this runs for every tensor of every step.
        alias: Any = like.data
        alias.__class__ = cls
        pending: Self = alias
        pending._settle = settle
        return pending

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if not describes(func):
            args, kwargs = _settled(args), _settled(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class PendingGradient(Pending):
    """A gradient whose sum over all ranks has not arrived yet; it is in the place of `parameter.grad` until then.

    torch's own clipping, its gradient scaler and a user's own code wait for it.
    """


def cover(gradient: torch.Tensor, settle: Callable[[], torch.Tensor]) -> None:
    """Have a gradient stand in for itself until `uncover`. Nobody may need it as a tensor meanwhile, but for `bare`."""
    covered: Any = gradient
    covered.__class__ = PendingGradient
    covered._settle = settle


def uncover(gradient: torch.Tensor) -> None:
    """The gradient is an ordinary one again, in the hands of whoever has it, if it was covered."""
    if type(gradient) is PendingGradient:
        covered: Any = gradient
        del covered._settle
        covered.__class__ = torch.Tensor


def bare(gradient: torch.Tensor) -> torch.Tensor:
    """The same memory, whatever is in it by now."""
    with torch._C.DisableTorchFunctionSubclass():
        return gradient.data


def describes(func: Callable[..., Any]) -> bool:
    """Whether a torch function asks what a tensor is, not what is in it."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") in _DESCRIPTION
    return name in _DESCRIBING


def _settled(value: Any) -> Any:
    """The same arguments with every pending tensor waited for and replaced by the tensor itself."""
    if isinstance(value, Pending):
        return value._settle()
    if isinstance(value, list | tuple):
        return type(value)(_settled(each) for each in value)
    if isinstance(value, dict):
        return {key: _settled(each) for key, each in value.items()}
    return value
