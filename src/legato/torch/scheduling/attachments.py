"""What is attached to a user's objects, so that it stays behind when they are copied and out of compiled graphs."""

import weakref
from collections.abc import Callable, Sequence
from functools import update_wrapper
from types import MethodType
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from legato.errors import ClosedError
from legato.torch.sync.synchronizer import Slot


class Hook:
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

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hook":
        del memo
        return Hook()

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        return Hook, ()


def bare(model: nn.Module) -> nn.Module:
    """The module itself, or the one that `torch.compile(module)` has wrapped."""
    inner = model._modules.get("_orig_mod")
    return model if inner is None else inner


def _faces(model: nn.Module) -> tuple[nn.Module, ...]:
    """All that a user may take for the model: with `torch.compile(model)` there are two."""
    inner = bare(model)
    return (model,) if inner is model else (model, inner)


_left_alone: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def leave_alone(model: nn.Module) -> None:
    """`schedule` has found nothing to synchronise: whatever a script asks of such a model later is done already."""
    _left_alone.add(bare(model))


def is_left_alone(model: nn.Module) -> bool:
    return bare(model) in _left_alone


class Owner(Protocol):
    """Keeps some weights of a model up to date."""

    @property
    def slots(self) -> Sequence[Slot]:
        """These weights."""

    def flush(self) -> None:
        """Bring them up to date."""


_OWNERS = "_legato"


class _Owners(Hook):
    """The owners of a model: one for each optimizer. A copy has none."""

    def __init__(self) -> None:
        super().__init__(self._flush)
        self.owners: list[Owner] = []

    def _flush(self, *_: Any, **__: Any) -> None:
        for owner in self.owners:
            owner.flush()


def add_owner(model: nn.Module, owner: Owner) -> None:
    attached = vars(bare(model)).get(_OWNERS)
    if not isinstance(attached, _Owners):
        attached = _Owners()
    for face in _faces(model):
        vars(face)[_OWNERS] = attached
    attached.owners.append(owner)


def remove_owner(model: nn.Module, owner: Owner) -> None:
    """With the last one go all traces."""
    attached = vars(bare(model))[_OWNERS]
    attached.owners.remove(owner)
    if not attached.owners:
        for face in _faces(model):
            for name in (_OWNERS, "named_parameters", "zero_grad"):
                vars(face).pop(name, None)


def owners_of(model: nn.Module) -> tuple[Owner, ...]:
    """Who keeps the model's weights up to date."""
    attached = vars(bare(model)).get(_OWNERS)
    return tuple(attached.owners) if isinstance(attached, _Owners) else ()


def cover_reading(model: nn.Module) -> list[RemovableHandle]:
    """Make what reads a model's weights flush its owners first: `state_dict`, `named_parameters` and `parameters`."""
    handles = []
    for face in _faces(model):
        # Bound methods of those names, as they were: copying and pickling bind the copy's own.
        vars(face)["named_parameters"] = MethodType(named_parameters, face)
        vars(face)["zero_grad"] = MethodType(zero_grad, face)
        handles += [
            face.register_state_dict_pre_hook(vars(face)[_OWNERS]),
            face.register_load_state_dict_pre_hook(vars(face)[_OWNERS]),
        ]
    return handles


def named_parameters(model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    vars(model)[_OWNERS]()
    return type(model).named_parameters(model, *arguments, **keywords)


def zero_grad(model: nn.Module, *arguments: Any, **keywords: Any) -> None:
    """It lists the parameters and reads no weight: updates that are due, usually since the line before, stay so."""
    covering = vars(model).pop("named_parameters")
    try:
        type(model).zero_grad(model, *arguments, **keywords)
    finally:
        vars(model)["named_parameters"] = covering


_COVER = "_legato_cover"


def cover_step(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
    """Have `optimizer.step(closure=None)` call `step(closure)` instead, on this one object: what it called before."""
    whole_step = optimizer.step

    def covering(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        del optimizer
        return step(closure)

    # A bound method with the marks of the one it covers: LR schedulers take it apart and look for theirs.
    update_wrapper(covering, whole_step)
    optimizer.step = MethodType(covering, optimizer)  # type: ignore[method-assign]
    vars(optimizer)[_COVER] = step
    return whole_step


def uncover_step(optimizer: torch.optim.Optimizer) -> None:
    for name in ("step", _COVER):
        vars(optimizer).pop(name)


def is_covered(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step() is somebody's; not so where a job has ended."""
    return vars(optimizer).get(_COVER, refuse) is not refuse


def refuse(closure: Callable[[], Any] | None = None) -> Any:
    """In place of step() when the job has ended: training on alone would go unnoticed, and ranks would drift apart."""
    del closure
    raise ClosedError(
        "the job in which this optimizer was scheduled has ended, and nobody averages gradients any more; to train on, "
        "call legato.torch.init() and schedule(model, optimizer) again; to train alone, unschedule(model) before "
        "shutdown()"
    )


def allow_step(optimizer: torch.optim.Optimizer) -> None:
    """Take off a refusal to step."""
    if vars(optimizer).get(_COVER) is refuse:
        uncover_step(optimizer)
