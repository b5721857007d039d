"""When each layer of a real model computes, by hooks on steps without communication."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from legato.core import Layer


class Marks(NamedTuple):
    """Instants of one step, on the clock of time.perf_counter."""

    forward_end_s: float
    backward_end_s: float
    update_end_s: float


class Stopwatch:
    """Watches the layers of a model: its modules with parameters of their own, called in the order they are held in.

        forward    layer 0 begins ─f0─► layer 1 begins ─f1─► … ─fn─► the loss is known
        backward   the loss is known ─bn─► gradients of n complete ─► … ─b0─► gradients of 0 complete
        update     shared out by bytes, to the forward: there a scheduled update runs

    What has no parameters (activations, pooling) counts with the layer before it, in backward with the one after.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: list[str] = []
        self._num_bytes: list[int] = []
        self._begun_s: dict[int, float] = {}
        self._complete_s: dict[int, float] = {}
        for name, module in model.named_modules():
            parameters = list(module.parameters(recurse=False))
            if parameters:
                self._watch(len(self._names), module, parameters)
                self._names.append(name)
                self._num_bytes.append(sum(each.numel() * each.element_size() for each in parameters))

    def layers(self, marks: Marks) -> list[Layer]:
        """The layers in the order of the forward pass, with their times in the step that has just ended."""
        order = range(len(self._names))
        forward_s = _gaps([*(self._begun_s[place] for place in order), marks.forward_end_s])
        backward_s = _gaps([marks.forward_end_s, *(self._complete_s[place] for place in reversed(order))])
        update_s_per_byte = (marks.update_end_s - marks.backward_end_s) / sum(self._num_bytes)
        return [
            Layer(name, num_bytes, forward + num_bytes * update_s_per_byte, backward)
            for name, num_bytes, forward, backward in zip(
                self._names, self._num_bytes, forward_s, reversed(backward_s), strict=True
            )
        ]

    def _watch(self, place: int, module: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        def begins(*_: Any) -> None:
            self._begun_s[place] = time.perf_counter()

        def complete(_: Any) -> None:
            self._complete_s[place] = time.perf_counter()  # of its parameters, the last one's stays

        module.register_forward_pre_hook(begins)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(complete)


def _gaps(instants_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(instants_s)]
