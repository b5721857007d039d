"""Layers: notes of a schedule's forward and backward passes for a timeline, while one is on.

A layer is a module that uses parameters. Its forward is the call; its backward begins when the gradient of its output
is there and ends with the last gradient of its parameters. Times are those at which this process worked, or queued work
for an accelerator.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from legato.observe import Timeline
from legato.observe.notes import HAND_OVER
from legato.torch.scheduling.attachments import Hook


class LayerNotes:
    """Attached to a model while a timeline is on; `detach` leaves nothing behind."""

    def __init__(
        self,
        timeline: Timeline,
        prefix: str,
        layers: Sequence[tuple[str, nn.Module, Iterable[nn.Parameter]]],
        parameters: Iterable[nn.Parameter],
        step: int,
    ) -> None:
        self._timeline = timeline
        self._prefix = prefix
        self._step = step
        layer_of: dict[nn.Parameter, str] = {}
        for name, _, used in layers:
            for parameter in used:
                layer_of.setdefault(parameter, name)  # shared weights belong to the first that uses them
        self._layers = [layer_of.get(each) for each in parameters]
        self._forward_ns: list[int] = []
        self._backward_ns: dict[str, list[int]] = {}
        """When the gradients of each layer's outputs have come in this pass."""
        self._through_ns = 0
        """Until when backward time has been given to a layer."""
        self._handles: list[RemovableHandle] = []
        for name, module, _ in layers:
            self._handles += [
                module.register_forward_pre_hook(Hook(self._enter)),
                module.register_forward_hook(Hook(self._leave, name), always_call=True),
            ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin_step(self, step: int) -> None:
        self._step = step

    def waited(self, name: str, begin_ns: int) -> None:
        """For a sum that was not there."""
        self._timeline.stretch("wait", name, begin_ns, self._step)

    def updated(self, names: Sequence[str], begin_ns: int) -> None:
        """These parameters are those of the step that begins."""
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        self._timeline.stretch("update", f"{names[0]}{others}", begin_ns, self._step)
        self._timeline.applied(tuple(f"{self._prefix}/{name}" for name in names), self._step - 1)

    def end_backward(self, came: Iterable[tuple[int, int]]) -> None:
        """A backward pass is over: index and time of each gradient that has come since the last one's end."""
        ends: list[tuple[str, int]] = []
        for index, ns in came:
            layer = self._layers[index]
            if layer is None:
                continue
            if ends and ends[-1][0] == layer:
                ends.pop()
            ends.append((layer, ns))
        for layer, end_ns in ends:
            begins = (ns for ns in self._backward_ns.get(layer, []) if ns <= end_ns)
            begin_ns = max(max(begins, default=end_ns), self._through_ns)
            self._timeline.stretch("backward", layer, begin_ns, self._step, end_ns)
            self._through_ns = end_ns
        self._backward_ns.clear()

    def end_pass(self, came: Iterable[tuple[int, int]]) -> None:
        """The same, of a schedule's pass: what has passed since the last gradient came was spent on sending it."""
        self.end_backward(came)
        if self._through_ns:
            self.handed_over(self._through_ns, self._step)

    def handed_over(self, begin_ns: int, step: int) -> None:
        """The schedule has kept the training thread from computing, after a pass of this step."""
        self._timeline.stretch("wait", HAND_OVER, begin_ns, step)

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
                each.register_hook(Hook(self._enter_backward, name))

    def _enter_backward(self, name: str, gradient: torch.Tensor) -> None:
        del gradient
        self._backward_ns.setdefault(name, []).append(time.monotonic_ns())
