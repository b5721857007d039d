"""The reducer: averages the gradients of a set of parameters, round by round (`GradientState`).

A backward pass submits the gradients that it accumulates; `finish` submits the rest, calls the roll, and waits for all
of them. The roll call is one small sum: how many ranks are training, and which parameters any of them has used. So a
parameter that nobody used keeps its gradient, or its lack of one, and a rank that is out of data can answer rounds with
zeros until a round in which nobody trains any more (`answer`).

Which gradients are sparse is known only when they are there, and not on a rank that has none. So their rows wait for
the roll call, which says where anybody has some: then they travel, beside what others may have that is not sparse.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from legato.compression import PLAIN, Selection
from legato.errors import InputError, OrderError
from legato.torch.compression import Compressor
from legato.torch.scheduling.attachments import Hook
from legato.torch.scheduling.gradients import GradientState, PendingGradient
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.rows import RowsPassage
from legato.torch.sync.synchronizer import Slot
from legato.transports.buffer import Array
from legato.transports.native.group import NativeGroup


@dataclass(slots=True, eq=False)
class _Gradient:
    """What the reducer knows of one parameter's gradient in this round."""

    index: int
    slot: Slot
    used: bool = False
    """Accumulated on this rank."""
    passes: int = 0
    state: GradientState = GradientState.LOCAL
    average: torch.Tensor | None = None
    """What came back, until the round is over."""
    rows: torch.Tensor | None = None
    """This rank's gradient, where it is sparse."""

    @property
    def in_flight(self) -> bool:
        return self.state is GradientState.IN_FLIGHT

    def restart(self) -> None:
        self.used, self.passes = False, 0
        self.state, self.average, self.rows = GradientState.LOCAL, None, None


class Reducer:
    """The gradients of one optimizer or one module. `remove` detaches it."""

    def __init__(
        self,
        group: NativeGroup,
        name: str,
        slots: Sequence[Slot],
        compressor: type[Compressor],
        selection: Selection = PLAIN,
        *,
        passes_per_round: int = 1,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        sparse_as_dense: bool = False,
        submitted: Callable[[], None] = lambda: None,
    ) -> None:
        self.group = group
        self.name = name
        self._gradients = [_Gradient(index, slot) for index, slot in enumerate(slots)]
        self._synchronizer = NativeSynchronizer(group, name, slots, compressor, selection)
        self._passes_per_round = passes_per_round
        self._prescale_factor = prescale_factor
        self._postscale_factor = postscale_factor
        self._sparse_as_dense = sparse_as_dense
        self._submitted = submitted
        self.synchronising = True
        """Whether backward passes submit; otherwise they only accumulate."""
        self._hooks: list[RemovableHandle] = []
        for each in self._gradients:
            self._hooks += [
                each.slot.parameter.register_hook(Hook(self._before_accumulation, each)),
                each.slot.parameter.register_post_accumulate_grad_hook(Hook(self._after_accumulation, each)),
            ]

    @property
    def in_flight(self) -> bool:
        """Whether a gradient is on its way, so that its memory is not the user's."""
        return any(each.in_flight for each in self._gradients)

    def set_passes_per_round(self, passes: int) -> None:
        self._passes_per_round = passes

    def finish(self, *, divide_by_present: bool = False) -> int:
        """Wait until every gradient holds its average: the number of ranks that trained in this round.

        With `divide_by_present` the average is theirs; otherwise ranks that only answered count with zeros.
        """
        present, used = self._round(training=True)
        factor = self.group.size / present if divide_by_present else 1.0
        for each, by_somebody in zip(self._gradients, used, strict=True):
            average, parameter = each.average, each.slot.parameter
            assert average is not None
            if by_somebody:
                parameter.grad = average if factor == 1.0 else average.mul_(factor)
        self._begin_round()
        return present

    def abandon(self) -> None:
        """Give the others the rest of a round that broke off here; gradients stay as the user has left them."""
        self._round(training=True)
        for each in self._gradients:
            if isinstance(each.slot.parameter.grad, PendingGradient):
                each.slot.parameter.grad = each.average
        self._begin_round()

    def answer(self) -> int:
        """Take part in a round with zeros, for ranks that still train: how many did."""
        present, _ = self._round(training=False)
        self._begin_round()
        return present

    def remove(self, *, waits: bool = True) -> None:
        """Let go of the parameters. What is in flight is waited for, or lost if the group is gone (`waits=False`)."""
        self.let_go(waits=waits)
        self._synchronizer.close()

    def let_go(self, *, waits: bool = False) -> None:
        """The same, where what moves gradients is closed by somebody else."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for each in self._gradients:
            if each.in_flight:
                each.slot.parameter.grad = self._settle(each) if waits else None

    # ---- backward ----

    def _before_accumulation(self, each: _Gradient, gradient: torch.Tensor) -> None:
        """Autograd would add to memory that the engine is using."""
        del gradient
        if each.in_flight:
            raise OrderError(
                f"parameter {each.slot.name!r}: a gradient was computed again before step() or synchronize(); "
                "to accumulate over several backward passes, say how many (backward_passes_per_step) or use no_sync"
            )
        if each.state is GradientState.AVERAGED:
            # Looked at, and then not used for a step: a gradient scaler has met an infinity, here and everywhere.
            each.restart()

    def _after_accumulation(self, each: _Gradient, parameter: nn.Parameter) -> None:
        each.used = True
        if not self.synchronising:
            return
        each.passes += 1
        if each.passes < self._passes_per_round:
            return
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            if not self._sparse_as_dense:
                self._submitted()  # its rows only go after the roll call
                return
            gradient = gradient.to_dense()
        self._submit(each, gradient)
        parameter.grad = PendingGradient.of(gradient, lambda: self._look_at(each, gradient))
        self._submitted()

    def _look_at(self, each: _Gradient, gradient: torch.Tensor) -> torch.Tensor:
        """Somebody uses the values of a gradient before the round is over."""
        if each.in_flight:
            each.slot.parameter.grad = self._settle(each)
        return gradient

    # ---- rounds ----

    def _round(self, *, training: bool) -> tuple[int, list[bool]]:
        own: dict[int, torch.Tensor] = {}
        for each in self._gradients:
            gradient = each.slot.parameter.grad
            if each.state is not GradientState.LOCAL or not training or gradient is None:
                continue
            if gradient.is_sparse and not self._sparse_as_dense:
                each.rows = gradient
            else:
                own[each.index] = gradient.to_dense() if gradient.is_sparse else gradient
        lines = [self._said(each, each.index in own) for each in self._gradients]
        roll = np.array([(training, 0, 0, 0), *lines], np.int32)
        called = self.group.push_pull_async(f"{self.name}/roll call", roll)
        for each in self._gradients:
            if each.state is GradientState.LOCAL:
                # A copy: what nobody has used in this round must stay as it is.
                self._submit(each, own[each.index].detach().clone() if each.index in own else None)
        for each in self._gradients:
            if each.in_flight:
                self._settle(each)
        called.wait()
        self._exchange_rows(roll[1:])
        return int(roll[0, 0]), [bool(count) for count in roll[1:, 0]]

    @staticmethod
    def _said(each: _Gradient, is_own: bool) -> tuple[int, int, int, int]:
        """A line of the roll call: was it used, is it dense, is it sparse, in how many dimensions."""
        is_dense = is_own or each.state is not GradientState.LOCAL
        return each.used, is_dense, each.rows is not None, 0 if each.rows is None else each.rows.sparse_dim()

    def _exchange_rows(self, roll: Array) -> None:
        """Average what is sparse on any rank, once the roll has been called."""
        passages = []
        for each, (_, num_dense, num_sparse, dims) in zip(self._gradients, roll.tolist(), strict=True):
            if not num_sparse:
                continue
            if dims % num_sparse:
                raise InputError(f"parameter {each.slot.name!r}: ranks differ in its gradient's sparse dimensions")
            rows = None if each.rows is None else each.rows * self._prescale_factor
            name = f"{self.name}/rows of {each.slot.name}"
            passage = RowsPassage(self.group, name, each.slot, rows, dims // num_sparse)
            passages.append((each, passage, num_dense > 0))
        for each, passage, has_dense in passages:
            average = passage.result() * self._postscale_factor
            each.average = each.average + average if has_dense and each.average is not None else average

    def _begin_round(self) -> None:
        for each in self._gradients:
            each.restart()

    def _submit(self, each: _Gradient, gradient: torch.Tensor | None) -> None:
        if gradient is not None and self._prescale_factor != 1.0:
            gradient.mul_(self._prescale_factor)
        self._synchronizer.submit(each.index, gradient)
        each.state = GradientState.IN_FLIGHT

    def _settle(self, each: _Gradient) -> torch.Tensor:
        self._synchronizer.wait(each.index)
        each.average = self._synchronizer.result(each.index)
        each.state = GradientState.AVERAGED
        if self._postscale_factor != 1.0:
            each.average.mul_(self._postscale_factor)
        return each.average
