"""Profiles: a model's layers as a workload, measured.

A layer begins where the forward pass comes to a module that holds parameters: there the next step waits for its sum. It
lasts until the next layer begins, so what lies between (activations, pooling, the loss at the end) is counted to it.
In backward a layer lasts from the last gradient of the layer after it to its own last one: then its tensor can leave.

    forward    │ layer 0 · relu │ layer 1 · relu │ layer 2 · loss │
    backward                                                      │ layer 2 │ layer 1 │ layer 0 │
                                                                         ready ▲    ▲         ▲

On CUDA, times are those of the device, between events on its stream. Nothing here needs the native module.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from legato.core.workload import Layer, Workload
from legato.errors import InputError
from legato.torch.tuning.clock import Stamp, clock_of

Loss = Callable[[Any], torch.Tensor]
"""A scalar from what the model returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """How often to measure."""

    warmup: int = 3
    """Passes before the first one that counts."""
    passes: int = 10
    """Passes that count; a layer's time is its median, scaled to that of whole passes."""

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.passes < 1:
            raise InputError(f"profile: warmup={self.warmup} and passes={self.passes} must be at least 1")


def mean_of_outputs(output: Any) -> torch.Tensor:
    """The loss of a model that has none: the mean of the first tensor that can be differentiated."""
    candidates = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else (output,)
    for each in candidates:
        if isinstance(each, torch.Tensor) and each.requires_grad:
            return each.mean()
    raise InputError("profile: the model returns no tensor that can be differentiated; give a loss")


def device_of(name: str) -> torch.device:
    """A device by its name; `auto` is an accelerator that is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device {name!r}: {error}") from None


def placed(made: Any, device: torch.device) -> tuple[nn.Module, Any]:
    """A pair of a model and its inputs, moved to a device."""
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise InputError("profile: the callable must return a pair: a torch.nn.Module and its example inputs")
    model, inputs = made
    return model.to(device), tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), inputs)


def profile(
    name: str, model: nn.Module, inputs: Any, *, loss: Loss = mean_of_outputs, config: ProfileConfig | None = None
) -> Workload:
    """Measure forward and backward of a model with these inputs: one argument, a tuple of them, or keywords."""
    config = config or ProfileConfig()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError(f"profile: model {name!r} has no parameters to train")
    with _watched(model, parameters[0].device) as watch:
        for _ in range(config.warmup):
            _run(model, inputs, loss, watch)
        measured = [_run(model, inputs, loss, watch) for _ in range(config.passes)]
    entries = measured[0].entries
    if any(each.entries != entries for each in measured):
        raise InputError(f"profile: model {name!r} goes through its modules in another order each time")
    first_use = _first_use(model, entries)
    num_bytes = [0] * len(entries)
    for parameter in measured[0].gradients_s:
        num_bytes[first_use[parameter]] += parameter.numel() * parameter.element_size()
    forward_s = _medians([each.forward_s for each in measured])
    backward_s = _medians([each.backward_s(first_use) for each in measured])
    return Workload(name, tuple(map(Layer, _distinct(entries), num_bytes, forward_s, backward_s)))


def _medians(passes: Sequence[Sequence[float]]) -> list[float]:
    """Of each layer, together as long as a median pass: what holds a layer up now and then is in no layer's median."""
    layers_s = [median(layer) for layer in zip(*passes, strict=True)]
    factor = median(map(sum, passes)) / (sum(layers_s) or 1.0)
    return [layer_s * factor for layer_s in layers_s]


def _distinct(entries: Sequence[str]) -> Iterator[str]:
    """A module that is called again is a layer of its own, without bytes: they came with the first call."""
    count: dict[str, int] = {}
    for name in entries:
        count[name] = count.get(name, 0) + 1
        yield (name or "model") + (f"#{count[name]}" if count[name] > 1 else "")


def _first_use(model: nn.Module, entries: Sequence[str]) -> dict[nn.Parameter, int]:
    """The layer that needs each parameter first: that of the earliest module that holds it.

    A module that is never called is used by what is around it, as the output weights of `nn.MultiheadAttention`.
    """
    first = {name: place for place, name in reversed(list(enumerate(entries)))}
    uses: dict[nn.Parameter, list[int]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holder = name.rpartition(".")[0]
        while holder and holder not in first:
            holder = holder.rpartition(".")[0]
        uses.setdefault(parameter, []).append(first.get(holder, 0))
    return {parameter: min(places) for parameter, places in uses.items()}


# ---- one pass ----


class _Pass(NamedTuple):
    """When what happened, in seconds after the beginning."""

    entries: list[str]
    entered_s: list[float]
    gradients_s: dict[nn.Parameter, float]
    backward_begin_s: float
    backward_end_s: float

    @property
    def forward_s(self) -> list[float]:
        ends_s = [*self.entered_s[1:], self.backward_begin_s]
        return [end_s - begin_s for begin_s, end_s in zip([0.0, *self.entered_s[1:]], ends_s, strict=True)]

    def backward_s(self, first_use: Mapping[nn.Parameter, int]) -> list[float]:
        """From the last layer to the first; one whose gradients come out of turn takes no time of its own."""
        ready_s = [0.0] * len(self.entries)
        for parameter, when_s in self.gradients_s.items():
            layer = first_use[parameter]
            ready_s[layer] = max(ready_s[layer], when_s)
        ready_s[0] = self.backward_end_s
        seconds = []
        until_s = self.backward_begin_s
        for when_s in reversed(ready_s):
            seconds.append(max(when_s - until_s, 0.0))
            until_s = max(until_s, when_s)
        return seconds[::-1]


class _Watch:
    """Marks what a pass comes to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clock = clock_of(device)
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()  # so that the device is not behind when we begin
        self.is_forward = True
        self.entries: list[str] = []
        self.gradients: list[nn.Parameter] = []
        self._stamps: list[Stamp] = []
        self._begin_ns = self._clock.begin()

    def mark(self) -> None:
        """Something happens now, or when the device comes to it."""
        self._stamps.append(self._clock.stamp())

    def marks_s(self) -> list[float]:
        """When each mark was reached after the beginning."""
        return [(when_ns - self._begin_ns) / 1e9 for when_ns in self._clock.times_ns(self._stamps)]

    def enter(self, name: str, module: nn.Module, arguments: Any) -> None:
        del module, arguments
        if self.is_forward:  # not where a checkpoint computes it again
            self.entries.append(name)
            self.mark()

    def accumulated(self, parameter: nn.Parameter) -> None:
        self.gradients.append(parameter)
        self.mark()


@contextmanager
def _watched(model: nn.Module, device: torch.device) -> Iterator[_Watch]:
    watch = _Watch(device)
    handles = [
        module.register_forward_pre_hook(partial(watch.enter, name))
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    handles += [
        parameter.register_post_accumulate_grad_hook(watch.accumulated)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _run(model: nn.Module, inputs: Any, loss: Loss, watch: _Watch) -> _Pass:
    arguments = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, Mapping) else (inputs,)
    keywords = inputs if isinstance(inputs, Mapping) else {}
    model.zero_grad(set_to_none=True)
    watch.begin()
    result = loss(model(*arguments, **keywords))
    watch.is_forward = False
    watch.mark()
    result.backward()
    watch.mark()
    marks_s = watch.marks_s()
    num_entries = len(watch.entries)
    return _Pass(
        entries=watch.entries,
        entered_s=marks_s[:num_entries],
        gradients_s=dict(zip(watch.gradients, marks_s[num_entries + 1 : -1], strict=True)),
        backward_begin_s=marks_s[num_entries],
        backward_end_s=marks_s[-1],
    )
