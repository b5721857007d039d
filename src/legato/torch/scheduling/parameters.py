"""Parameters: what a schedule knows of each, and how its gradient becomes an average (`GradientState`)."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from legato.exchange.measure import Measure
from legato.torch.scheduling.gradients import Factor, GradientState, PendingGradient, uncover
from legato.torch.scheduling.layers import LayerNotes
from legato.torch.scheduling.metrics import GradientWatch
from legato.torch.scheduling.modules import sparse_weights, trained
from legato.torch.scheduling.slices import SlicedUpdate
from legato.torch.scheduling.update import Hyperparameters
from legato.torch.sync.synchronizer import Slot, Synchronizer, local_of
from legato.torch.tuning.live import Tuning
from legato.torch.tuning.pace import Pace

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ScheduledParameter:
    """One parameter, and what has become of its gradient."""

    index: int
    slot: Slot
    group: int
    state: GradientState = GradientState.LOCAL
    gradient: torch.Tensor | None = None
    """The gradient under way or averaged, until it has been applied; what of it is here, where it is a shard."""
    factors: tuple[Factor, ...] = ()
    """By which the average is multiplied, one after the other, when it has been waited for."""
    num_settled: int = 0
    """Of an average that is still on its way: so many of its first items are here and multiplied."""
    had_none: bool = False
    """What is in flight is the others': this rank had nothing to add."""
    backward: int = -1
    """The last backward pass that submitted it."""
    due: Hyperparameters | None = None
    """The update it owes since the user's step()."""
    slices: SlicedUpdate | None = None
    """That update, once a part of it has been applied."""
    num_uses: int = 0
    """How often graphs held it at that step()."""
    updated: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None
    """On an accelerator: the stream that updated it last, and when it has."""
    look: Callable[[], torch.Tensor] = field(init=False)
    """What somebody does who uses the values of its gradient under way."""
    is_elementwise: bool = False
    """Whether its update may come in slices: it is large, and the first step has shown that its items allow it."""

    def applied(self) -> None:
        """It owes nothing any more."""
        self.due = self.slices = self.gradient = None
        self.state = GradientState.LOCAL


class ScheduledParameters:
    """All that one schedule has, in the order of the synchronizer's indices."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        make_synchronizer: Callable[[Sequence[Slot]], Synchronizer],
    ) -> None:
        sparse = sparse_weights(model)
        self.all = [
            ScheduledParameter(index, Slot(name, parameter, parameter in sparse), group)
            for index, (group, name, parameter) in enumerate(trained(model, optimizer))
        ]
        self.of = {each.slot.parameter: each for each in self.all}
        self.synchronizer = make_synchronizer([each.slot for each in self.all])
        self.synchronising = True
        """Whether gradients travel; otherwise they only accumulate."""
        self.notes: LayerNotes | None = None
        self.tuning: Tuning | None = None
        self.pace: Pace | None = None
        self.watch: GradientWatch | None = None
        self.note_gradient: Callable[[int, torch.Tensor | None], None] | None = None
        """Told of every gradient just before it travels."""

    def submit(self, each: ScheduledParameter, gradient: torch.Tensor | None) -> None:
        if self.watch is not None:
            self.watch.submitted(each.index, gradient)
        if self.note_gradient is not None:
            self.note_gradient(each.index, gradient)
        self.synchronizer.submit(each.index, gradient)
        each.had_none = gradient is None
        if gradient is not None:
            each.gradient = gradient
        each.state = GradientState.IN_FLIGHT

    def submit_missing(self) -> None:
        """What no backward pass has submitted: all of it was under no_sync, or there was none here."""
        if self.synchronising:
            for each in self.all:
                if each.state is GradientState.LOCAL:
                    gradient = each.slot.parameter.grad
                    self.submit(each, None if gradient is None else local_of(gradient))

    def settle(self, *some: ScheduledParameter) -> None:
        """Wait for gradients that are under way; then `parameter.grad` is the average, unless the user dropped it."""
        multiplied: dict[tuple[float, ...], list[torch.Tensor]] = {}
        for each in some:
            if each.state is not GradientState.IN_FLIGHT:
                continue
            values = _values(each.factors)
            self._bring_home(each)
            if self.watch is not None:
                self.watch.averaged(each.index, each.gradient)
            num_settled, each.num_settled = each.num_settled, 0
            if values and each.gradient is not None:
                rest = each.gradient.view(-1)[num_settled:] if num_settled else each.gradient
                multiplied.setdefault(values, []).append(rest)
        with torch.no_grad():
            for values, gradients in multiplied.items():
                for value in values:
                    torch._foreach_mul_(gradients, value)

    @torch.no_grad()
    def settle_first(self, each: ScheduledParameter, items: torch.Tensor, num_items: int) -> None:
        """Wait for so many of the first items of an average that arrives in place: there are its `items`."""
        values = _values(each.factors)
        num_here = self._wait(each, lambda: self.synchronizer.wait_first(each.index, num_items))
        for value in values:
            items[each.num_settled : num_here].mul_(value)
        each.num_settled = num_here

    def _bring_home(self, each: ScheduledParameter) -> None:
        somebody_had_one = self._wait(each, lambda: self.synchronizer.wait(each.index))
        each.state = GradientState.AVERAGED
        each.factors = ()
        if each.gradient is not None:
            uncover(each.gradient)
        parameter = each.slot.parameter
        is_ours = isinstance(parameter.grad, PendingGradient)
        if somebody_had_one:
            each.gradient = self.synchronizer.result(each.index)
            if is_ours or (each.had_none and each.due is None and parameter.grad is not None):
                parameter.grad = each.slot.whole(each.gradient)
        elif is_ours:
            parameter.grad = None

    def measure(self, each: ScheduledParameter) -> Measure:
        """Of a gradient under way, when it has been averaged: waited for like an average, but there before it."""
        return self._wait(each, lambda: self.synchronizer.measure(each.index))

    def settle_all(self) -> None:
        self.settle(*self.all)

    def drop_zeroed(self) -> None:
        """A gradient that was set to None after backward is not applied."""
        for each in self.all:
            if each.gradient is not None and not each.had_none and each.slot.parameter.grad is None:
                self.settle(each)
                each.gradient = None

    def forget_gradients(self) -> None:
        """They are averaged, and the optimizer finds them in `parameter.grad`."""
        for each in self.all:
            each.gradient, each.state = None, GradientState.LOCAL

    def _wait(self, each: ScheduledParameter, wait: Callable[[], T]) -> T:
        is_watched = self.notes is not None or self.tuning is not None or self.pace is not None
        if not is_watched or self.synchronizer.poll(each.index):
            return wait()
        begin_ns = time.monotonic_ns()
        if self.pace is not None:
            self.pace.mark_wait()
        if self.tuning is not None:
            self.tuning.waiting()
        found = wait()
        if self.pace is not None:
            self.pace.mark_wait()
        if self.tuning is not None:
            self.tuning.waited()
        if self.notes is not None:
            self.notes.waited(each.slot.name, begin_ns)
        return found


def _values(factors: Iterable[Factor]) -> tuple[float, ...]:
    """Those that change anything; finding them may wait for measures, which nobody has once averages are home."""
    return tuple(value for factor in factors if (value := factor.value) != 1.0)
