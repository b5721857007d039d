"""Layers: notes of a schedule's forward and backward passes for a timeline, while one is on.

A layer is a module that uses parameters. Its forward is the call; its backward begins when the gradient of its output
is there and ends with the last gradient of its parameters. Times are those at which this process worked, or queued work
for an accelerator.

What legato does on the training thread besides waiting and updating is overhead: from `take` to `give_back`.

    ┤ hook before layer 0                   ├───────────┬ … ┬────────────────────┤ hook after its gradient ├
    │ overhead │ wait │ update │ overhead   │  forward  │   │      backward      │        overhead         │
"""

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from legato.observe import Timeline
from legato.observe.notes import Work
from legato.torch.scheduling.attachments import Hook
from legato.torch.scheduling.modules import Enter


class LayerNotes:
    """Attached to a model while a timeline is on; `detach` leaves nothing behind."""

    def __init__(
        self,
        timeline: Timeline,
        prefix: str,
        layers: Sequence[tuple[str, nn.Module, Iterable[nn.Parameter]]],
        step: int,
    ) -> None:
        self._timeline = timeline
        self._prefix = prefix
        self._step = step
        self._names = {module: name for name, module, _ in layers}
        self._layer_of: dict[nn.Parameter, str] = {}
        for name, _, used in layers:
            for parameter in used:
                self._layer_of.setdefault(parameter, name)  # shared weights belong to the first that uses them
        self._forward_ns: list[int] = []
        self._backward_ns: dict[str, int] = {}
        self._latest: tuple[str, int] | None = None
        """The layer whose gradients come at present, and when its last one came."""
        self._through_ns = 0
        """Until when backward time has been given to a layer or a hook."""
        self._taken_ns: int | None = None
        """While legato has the thread: until when its work has been noted."""
        self._given_ns = 0
        """When it gave the thread back."""
        self._handles: list[RemovableHandle] = []
        for name, module, _ in layers:
            self._handles += [
                module.register_forward_pre_hook(Hook(self._enter)),
                module.register_forward_hook(Hook(self._leave, name), always_call=True),
            ]
        for parameter, name in self._layer_of.items():
            # After the schedule's own, which was there before.
            after = partial(self._after_gradient, name)
            self._handles.append(parameter.register_post_accumulate_grad_hook(after))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin_step(self, step: int) -> None:
        self._step = step

    def take(self) -> None:
        """Legato has the thread."""
        self._taken_ns = time.monotonic_ns()

    def give_back(self, name: str) -> None:
        """Legato is done, with what goes by this name."""
        self._given_ns = time.monotonic_ns()
        self._overhead_until(self._given_ns, name)
        self._taken_ns = None

    def noting(self, enter: Enter) -> Enter:
        """The same hook before modules, and a note of what it does."""

        def noted(module: nn.Module, arguments: Any) -> None:
            self.take()
            try:
                enter(module, arguments)
            finally:
                self.give_back(self._names.get(module) or type(module).__name__)

        return noted

    def waited(self, name: str, begin_ns: int) -> None:
        """For a sum that was not there."""
        self._worked("wait", name, begin_ns)

    def updated(self, names: Sequence[str], begin_ns: int) -> None:
        """These parameters are those of the step that begins."""
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        self._worked("update", f"{names[0]}{others}", begin_ns)
        for name in names:
            self._timeline.applied(f"{self._prefix}/{name}", self._step - 1)

    def gradient(self, parameter: nn.Parameter) -> None:
        """A gradient has been accumulated."""
        layer = self._layer_of.get(parameter)
        if layer is None:
            return
        if self._latest is not None and self._latest[0] != layer:
            self.end_backward()
        self._taken_ns = time.monotonic_ns()
        self._latest = (layer, self._taken_ns)

    def end_backward(self) -> None:
        """No more gradients of the latest layer will come in this pass."""
        if self._latest is None:
            return
        layer, end_ns = self._latest
        begin_ns = max(self._backward_ns.pop(layer, end_ns), self._through_ns)
        self._timeline.stretch("backward", layer, begin_ns, self._step, end_ns)
        self._latest, self._through_ns = None, max(end_ns, self._given_ns)

    def _worked(self, work: Work, name: str, begin_ns: int) -> None:
        """Until now; what came before it in a hook was overhead."""
        end_ns = time.monotonic_ns()
        self._overhead_until(begin_ns, name)
        self._timeline.stretch(work, name, begin_ns, self._step, end_ns)
        if self._taken_ns is not None:
            self._taken_ns = end_ns

    def _overhead_until(self, end_ns: int, name: str) -> None:
        if self._taken_ns is not None:
            self._timeline.stretch("overhead", name, self._taken_ns, self._step, end_ns)

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        del module, arguments
        self._forward_ns.append(time.monotonic_ns())

    def _leave(self, name: str, module: nn.Module, arguments: Any, result: Any) -> None:
        del module, arguments
        if not self._forward_ns:
            return  # the timeline was started inside this call
        self._timeline.stretch("forward", name, self._forward_ns.pop(), self._step)
        for each in result if isinstance(result, list | tuple) else (result,):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                each.register_hook(partial(self._enter_backward, name))

    def _enter_backward(self, name: str, gradient: torch.Tensor) -> None:
        del gradient
        self._backward_ns[name] = time.monotonic_ns()

    def _after_gradient(self, name: str, parameter: nn.Parameter) -> None:
        del parameter
        self.give_back(name)
