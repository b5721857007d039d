"""Slices: a large parameter's update, one stretch of its items after the other, while its average arrives.

    average    ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░
    update     ├─ slice ─┤├─ slice ─┤├─ waits for the next SLICE_BYTES

Slices are the same on every rank and in every run, whatever has arrived when, and a large parameter that has arrived in
full is updated in the same ones: torch's kernels may round the last few items of what they are given differently from
the others, so weights would otherwise depend on time.

A slice is a parameter of its own to the optimizer: a flat view of the parameter, of its gradient and of every state
that has the parameter's shape. What else is in the state, such as a count of steps, each slice gets a copy of, and the
parameter gets the last slice's. This is right only for an optimizer that treats items independently; `is_elementwise`
tries that on the user's own instead of believing it.
"""

import copy
from typing import Any

import torch
from torch import nn

from legato.torch.scheduling.update import Hyperparameters, step_narrowed

SLICE_BYTES = 4 << 20
"""Worth a step of the optimizer, which costs some 100 µs whatever it steps. In slices of 1, 2, 4 and
8 MB and as a whole, 64 MB took SGD with momentum 46, 41, 38, 37 and 37 ms and Adam 128, 106, 105, 100 and 94 ms, each
the best of four on one Neoverse-N1 core that others used. Of a parameter that is waited for, so much is left to update
when its last byte has arrived."""

_ALIGNMENT = 64
"""Slices are cut at multiples of so many items, so that on one thread the items that torch's kernels round differently
are those of a whole update: what is left behind the last vector (fused SGD, on Neoverse-N1)."""
_TRIED_ITEMS = 4096


def is_large(parameter: torch.Tensor) -> bool:
    """Whether slices are worth it, and simple: the items fill the host's memory in their order."""
    return (
        parameter.is_cpu
        and parameter.nbytes >= 2 * SLICE_BYTES
        and parameter.is_contiguous()
        and not parameter.is_complex()
    )


class SlicedUpdate:
    """The update of one parameter, under way: its first `num_done` items have it."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        values: Hyperparameters,
        group: int,
        parameter: nn.Parameter,
        gradient: torch.Tensor,
        slice_bytes: int | None = None,
    ) -> None:
        self.num_done = 0
        num_items = (slice_bytes or SLICE_BYTES) // parameter.element_size()
        self._slice_items = max(num_items // _ALIGNMENT, 1) * _ALIGNMENT
        self._optimizer = optimizer
        self._values = values
        self._group = group
        self._parameter = parameter
        self._items = parameter.detach().view(-1)
        self.gradient = gradient.view(-1)
        self._before: dict[str, Any] = dict(optimizer.state.get(parameter, {}))
        """What a slice's state is made of: later slices must not see what earlier ones have begun."""
        self._whole = {key: value for key, value in self._before.items() if _has_shape(value, parameter)}
        """States of the parameter's shape, also those that the first slice begins."""

    @property
    def is_done(self) -> bool:
        return self.num_done == self._items.numel()

    @property
    def next_end(self) -> int:
        """Where the next slice ends."""
        return min(self.num_done + self._slice_items, self._items.numel())

    def step(self) -> None:
        """Update the next slice, whose average is here."""
        end = self.next_end
        stretch = slice(self.num_done, end)
        part = _like(self._parameter, self._items[stretch])
        part.grad = self.gradient[stretch]
        states = self._optimizer.state
        if self._before:
            states[part] = {
                key: value.view(-1)[stretch] if key in self._whole else copy.deepcopy(value)
                for key, value in self._before.items()
            }
        try:
            step_narrowed(self._optimizer, self._values.narrowed([(self._group, part)]))
        finally:
            after = states.pop(part, {})
        if not self.num_done:
            self._whole |= {
                key: torch.empty_like(self._parameter, dtype=value.dtype, requires_grad=False)
                for key, value in after.items()
                if key not in self._whole and _has_shape(value, part)
            }
        for key in self._whole.keys() & after.keys():
            own = self._whole[key].view(-1)[stretch]
            if own.data_ptr() != after[key].data_ptr():
                own.copy_(after[key])
        self.num_done = end
        if self.is_done and after:
            _replace(states[self._parameter], {**after, **self._whole})


def is_elementwise(optimizer: torch.optim.Optimizer, group: int, parameter: nn.Parameter) -> bool:
    """Whether slices get to the bit what a step of the whole gives.

    Tried with a few rows for the parameter's memory, since an optimizer may know the parameter itself. Their values are
    random, with small gradients in one step and large ones in the next: a layer that gets no gradient yet would say
    nothing of norms. Afterwards the parameter, its gradient and its state are what they were.
    """
    num_rows = max(_TRIED_ITEMS // parameter[0].numel(), 3)
    shape = (min(num_rows, parameter.shape[0]), *parameter.shape[1:])
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator).to(parameter.dtype)
    values = Hyperparameters(optimizer).moving()
    states = optimizer.state
    kept = parameter.data, parameter.grad, states.pop(parameter, None)
    twin = _like(parameter, start.clone())
    try:
        parameter.data, parameter.grad = start.clone(), None
        for each in (parameter, twin):
            if kept[2] is not None:
                states[each] = {
                    key: value.new_zeros(shape) if _has_shape(value, kept[0]) else copy.deepcopy(value)
                    for key, value in kept[2].items()
                }
        for magnitude in (1e-3, 1e3):
            gradient = (magnitude * torch.randn(shape, generator=generator)).to(parameter.dtype)
            parameter.grad = gradient.clone()
            step_narrowed(optimizer, values.narrowed([(group, parameter)]))
            update = SlicedUpdate(optimizer, values, group, twin, gradient, start.nbytes // 3)
            while not update.is_done:
                update.step()
        says_something = bool(parameter.isfinite().all()) and not torch.equal(parameter, start)
        return says_something and torch.equal(parameter, twin) and _same(states[parameter], states[twin])
    except Exception:  # noqa: BLE001 - whatever an optimizer says of a slice, it does not want one
        return False
    finally:
        for each in (parameter, twin):
            states.pop(each, None)
        parameter.grad = None  # of another shape than what comes
        parameter.data, parameter.grad = kept[:2]
        if kept[2] is not None:
            states[parameter] = kept[2]


def _like(parameter: nn.Parameter, items: torch.Tensor) -> nn.Parameter:
    """Other items, with whatever marks a user has put on the parameter for the optimizer."""
    other = nn.Parameter(items, requires_grad=parameter.requires_grad)
    vars(other).update(vars(parameter))
    return other


def _has_shape(value: Any, like: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == like.shape and value.is_contiguous()


def _replace(state: dict[str, Any], new: dict[str, Any]) -> None:
    """In place where there is a tensor: others may hold it."""
    for key, value in new.items():
        old = state.get(key)
        if old is value:
            continue
        if isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor) and old.shape == value.shape:
            old.copy_(value)
        else:
            state[key] = value


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )
