"""Hooks: where a model's backward and forward passes meet the synchronisation of its gradients.

The life of one parameter through a step; its update runs in the pre-hook of the module that uses it next:

    backward                 step()                next forward
    gradient accumulated ─► submitted ─► update due ─► pre-hook of its module: wait, update, go on
            ▲                    │
            └── looked at before step(): waited for there (clipping, a scaler), and nothing is left to overlap

Nobody may see weights whose update is due: a forward pass updates what its modules own just before they run; reading
the model otherwise (state_dict, parameters, load) flushes first.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from legato.errors import LegatoError
from legato.observe import Timeline
from legato.torch.scheduling.attachments import (
    Hook,
    add_owner,
    cover_reading,
    cover_step,
    owners_of,
    refuse,
    remove_owner,
    uncover_step,
)
from legato.torch.scheduling.divergence import Comparison
from legato.torch.scheduling.gradients import PendingGradient
from legato.torch.scheduling.layers import LayerNotes
from legato.torch.scheduling.modules import Enrolment, Owners, sparse_weights, trained
from legato.torch.scheduling.update import Hyperparameters, is_separable, step_narrowed
from legato.torch.scheduling.wrappers import Surroundings
from legato.torch.sync.switching import Switching
from legato.torch.sync.synchronizer import Slot, Synchronizer
from legato.torch.tuning.live import Tuning

_log = logging.getLogger(__name__)


class StaleWeightError(LegatoError):
    """A parameter was used before its update was applied: its module was not called in the usual way."""


@dataclass(slots=True, eq=False)
class _Parameter:
    """What the schedule knows of one parameter."""

    index: int
    slot: Slot
    group: int
    gradient: torch.Tensor | None = None
    """The gradient under way or averaged, until it has been applied."""
    had_none: bool = False
    """What is in flight is the others': this rank had nothing to add."""
    submitted: bool = False
    """Since the last step; also where this rank had no gradient."""
    backward: int = -1
    """The last backward pass that submitted it."""
    in_flight: bool = False
    """Submitted and not waited for."""
    due: Hyperparameters | None = None
    """The update it owes since the user's step()."""
    num_uses: int = 0
    """How often graphs held it at that step()."""
    updated: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None
    """On an accelerator: the stream that updated it last, and when it has."""


class Schedule:
    """One model, one optimizer, and the synchronisation of the gradients between them.

    `remove` undoes everything it attached. The optimizer keeps its class, its state and its `param_groups`; only its
    `step` is covered, on this one object.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        make_synchronizer: Callable[[Sequence[Slot]], Synchronizer],
        *,
        passes_per_step: int = 1,
        timeline: Timeline | None = None,
        prefix: str = "",
        make_comparison: Callable[[Sequence[Slot]], Comparison] | None = None,
    ) -> None:
        """`prefix` is what the synchronizer puts before the parameters' names; the timeline shows them with it."""
        self._model = model
        self._optimizer = optimizer
        self._parameters: list[_Parameter] = []
        self._of: dict[nn.Parameter, _Parameter] = {}
        self._collect(model, optimizer)
        self._enrolment = Enrolment(model, optimizer)
        self._surroundings = Surroundings(self._of)
        self._synchronizer = make_synchronizer(self.slots)
        self._comparison = None if make_comparison is None else make_comparison(self.slots)
        self._owners = Owners(model, [each.slot.parameter for each in self._parameters])
        self._synchronising = True
        self._passes_per_step = passes_per_step
        self._passes: dict[int, int] = {}
        self._backward = -1
        cuda = {each.slot.parameter.device for each in self._parameters if each.slot.parameter.is_cuda}
        self._streams = {device: torch.cuda.current_stream(device) for device in cuda}
        """Those on which the last backward pass was asked for: where a script expects its gradients."""
        self._overlap: bool | None = None
        self._in_order: list[_Parameter] = []
        self._next_in_order = 0
        self._said: set[str] = set()
        self._num_steps = 0
        self._timeline = timeline
        self._prefix = prefix
        self._notes: LayerNotes | None = None
        self._tuning: Tuning | None = None
        self._handles: list[RemovableHandle] = []
        self._attach(model)
        self.note()

    @classmethod
    def of(cls, model: nn.Module) -> "Schedule":
        """The schedule attached to a model; the first, where it has several optimizers."""
        schedules = [owner for owner in owners_of(model) if isinstance(owner, cls)]
        if not schedules:
            raise LegatoError("this model is not scheduled; call legato.torch.schedule(model, optimizer) first")
        return schedules[0]

    # ---- what a user asks for ----

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only accumulate; the first one after it synchronises what has come together."""
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    def synchronize(self) -> None:
        """Wait until every gradient holds its average."""
        self._submit_missing()
        for each in self._parameters:
            self._settle(each)

    def flush(self) -> None:
        """Apply every update that is due, so that the weights are those after the user's last step()."""
        due = [each for each in self._parameters if each.due is not None]
        if due:
            self._update(due)
        self._synchronizer.confirm()

    def note(self) -> None:
        """Take notes for the timeline if it is on now, otherwise no longer."""
        if self._notes is not None:
            self._notes.detach()
            self._notes = None
        if self._timeline is not None and self._timeline.on:
            self._notes = LayerNotes(self._timeline, self._prefix, self._owners.layers(), self._num_steps)

    @property
    def synchronizer(self) -> Synchronizer:
        """What moves its gradients."""
        return self._synchronizer

    @property
    def slots(self) -> list[Slot]:
        """Its parameters, in the order of the synchronizer's indices."""
        return [each.slot for each in self._parameters]

    def tune(self, tuning: Tuning) -> None:
        """Have every step measured, and follow plans that are agreed on meanwhile."""
        self._tuning = tuning

    def remove(self) -> None:
        """The job ends: leave the model as it was, and an optimizer that refuses to step alone."""
        self.take_off()
        cover_step(self._optimizer, refuse)

    def take_off(self) -> None:
        """Flush, then leave model and optimizer as they were."""
        self.flush()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._owners.detach()
        if self._notes is not None:
            self._notes.detach()
        if self._tuning is not None:
            self._tuning.close()
        remove_owner(self._model, self)
        uncover_step(self._optimizer)
        for each in self._parameters:
            self._settle(each)
        self._synchronizer.close()

    # ---- set-up ----

    def _collect(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        sparse = sparse_weights(model)
        for group, name, parameter in trained(model, optimizer):
            slot = Slot(name, parameter, parameter in sparse)
            known = _Parameter(len(self._parameters), slot, group)
            self._parameters.append(known)
            self._of[parameter] = known

    def _attach(self, model: nn.Module) -> None:
        for each in self._parameters:
            parameter = each.slot.parameter
            # Copies and pickles of a parameter leave its hooks behind, and no compiler looks into them.
            self._handles += [
                parameter.register_hook(partial(self._before_accumulation, each)),
                parameter.register_post_accumulate_grad_hook(partial(self._after_accumulation, each)),
            ]
        self._owners.attach(Hook(self._before_forward))
        flush = Hook(self._flush_before)
        self._handles += [
            self._optimizer.register_state_dict_pre_hook(flush),
            self._optimizer.register_load_state_dict_pre_hook(flush),
        ]
        self._whole_step = cover_step(self._optimizer, self._step)
        add_owner(model, self)
        self._handles += cover_reading(model)

    # ---- backward ----

    def _before_accumulation(self, each: _Parameter, gradient: torch.Tensor) -> None:
        """Autograd adds to `parameter.grad` in place: what is under way there has to come home first."""
        del gradient
        if each.due is not None:
            raise _stale(each)
        if each.in_flight:
            self._settle(each)

    def _after_accumulation(self, each: _Parameter, parameter: nn.Parameter) -> None:
        if self._notes is not None:
            self._notes.gradient(parameter)
        if self._tuning is not None:
            self._tuning.gradient(each.index)
        if not self._synchronising:
            return
        if self._passes_per_step > 1:
            passes = self._passes.get(each.index, 0) + 1
            self._passes[each.index] = passes % self._passes_per_step
            if passes < self._passes_per_step:
                return
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            Variable._execution_engine.queue_callback(self._end_backward)
        gradient = parameter.grad
        assert gradient is not None
        # What `_submit` does, without a call: this runs for every tensor of every step.
        self._synchronizer.submit(each.index, gradient)
        each.backward, each.gradient, each.had_none = backward, gradient, False
        each.submitted = each.in_flight = True
        # A sparse average is another tensor than what was given.
        given = None if gradient.is_sparse else gradient
        parameter.grad = PendingGradient.of(gradient, partial(self._look_at, each, given))

    def _end_backward(self) -> None:
        """Every rank takes part in every task, also for parameters that its own pass did not use.

        At the end of backward, not in step(): whoever clips in between waits for the others.
        """
        if self._notes is not None:
            self._notes.end_backward()
        for device in self._streams:
            self._streams[device] = torch.cuda.current_stream(device)
        self.flush()  # what this pass did not use still owes its last update, and its gradient makes room now
        for each in self._parameters:
            if each.backward != self._backward:
                self._settle(each)
                self._submit(each, None)
                if each.slot.parameter.grad is None:
                    # Of the parameter's shape, without memory of its own: the gradient comes from elsewhere, if at all.
                    shape = each.slot.parameter.detach().new_zeros(()).expand(each.slot.parameter.shape)
                    each.slot.parameter.grad = PendingGradient.of(shape, partial(self._look_at, each, None))

    def _submit(self, each: _Parameter, gradient: torch.Tensor | None) -> None:
        self._synchronizer.submit(each.index, gradient)
        each.had_none = gradient is None
        if gradient is not None:
            each.gradient = gradient
        each.submitted = each.in_flight = True

    def _submit_missing(self) -> None:
        """What no backward pass has submitted: all of it was under no_sync, or there was none here."""
        if self._synchronising:
            for each in self._parameters:
                if not each.submitted:
                    self._submit(each, each.slot.parameter.grad)

    def _look_at(self, each: _Parameter, given: torch.Tensor | None) -> torch.Tensor:
        """Somebody uses the values of a pending gradient; after step(), its update has to come first."""
        each.slot.check(each.slot.parameter)
        if each.in_flight:
            if each.due is None:
                self._say(
                    "gradients are read between backward and step (clipping, a gradient scaler): "
                    "such steps wait for all of them and overlap with backward only"
                )
            self._settle(each)
            if (stream := self._streams.get(each.slot.parameter.device)) is not None:
                # Whoever looks on another stream has the average copied there; all others still find it ready.
                stream.wait_stream(torch.cuda.current_stream(stream.device))
        gradient = each.gradient if given is None else given
        if each.due is not None:
            self._update([each])
        # Where no rank had a gradient, whoever has taken this one for a gradient reads zeros.
        return torch.zeros_like(each.slot.parameter) if gradient is None else gradient

    def _settle(self, each: _Parameter) -> None:
        """Wait for a gradient that is under way; then `parameter.grad` is the average, unless the user dropped it."""
        if not each.in_flight:
            return
        somebody_had_one = self._wait(each)
        each.in_flight = False
        parameter = each.slot.parameter
        is_ours = isinstance(parameter.grad, PendingGradient)
        if somebody_had_one:
            each.gradient = self._synchronizer.result(each.index)
            if is_ours or (each.had_none and each.due is None and parameter.grad is not None):
                parameter.grad = each.gradient
        elif is_ours:
            parameter.grad = None

    def _wait(self, each: _Parameter) -> bool:
        if (self._notes is None and self._tuning is None) or self._synchronizer.poll(each.index):
            return self._synchronizer.wait(each.index)
        begin_ns = time.monotonic_ns()
        if self._tuning is not None:
            self._tuning.waiting()
        somebody_had_one = self._synchronizer.wait(each.index)
        if self._tuning is not None:
            self._tuning.waited()
        if self._notes is not None:
            self._notes.waited(each.slot.name, begin_ns)
        return somebody_had_one

    # ---- step ----

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        self._enrolment.check()
        if closure is not None:
            return self._step_with(closure)
        self.flush()  # what this forward pass did not use still owes its last update
        self._count_step()
        self._drop_zeroed()
        self._submit_missing()
        if not self._overlap:
            return self._step_at_once()
        if not any(each.in_flight for each in self._parameters):
            self._forget_gradients()
            return self._step_whole()
        values = Hyperparameters(self._optimizer)
        for each in self._parameters:
            each.due, each.submitted = values, False
            each.num_uses = _num_uses(each.slot.parameter)
        self._next_in_order = 0
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # what LR schedulers ask for
        return None

    def _step_at_once(self) -> Any:
        """Wait for everything, then take the whole step: the first time, and for optimizers that cannot be divided."""
        for each in self._parameters:
            self._settle(each)
        self._forget_gradients()
        has_gradients = any(each.slot.parameter.grad is not None for each in self._parameters)
        if self._overlap is not None or not has_gradients:  # a step before training says nothing of the order of use
            return self._step_whole()
        order = self._owners.order()
        self._synchronizer.set_order(order)
        if self._tuning is not None:
            self._tuning.begin(order)
        self._in_order = [self._parameters[index] for index in order]
        if self._has_step_hooks():
            self._overlap = False
            return self._step_whole()
        self._overlap = is_separable(self._optimizer)
        if not self._overlap:
            self._say(f"{type(self._optimizer).__name__} steps its parameters together: updates wait for all gradients")
        return None

    def _step_whole(self) -> Any:
        begin_ns = time.monotonic_ns()
        result = self._whole_step()
        if self._notes is not None:
            self._notes.updated([each.slot.name for each in self._parameters], begin_ns)
        return result

    def _count_step(self) -> None:
        self._num_steps += 1
        if self._comparison is not None:
            self._comparison.before_step(self._num_steps)
        if self._notes is not None:
            self._notes.begin_step(self._num_steps)
        if self._tuning is not None:
            self._tuning.step()
        if isinstance(self._synchronizer, Switching):
            self._synchronizer = self._synchronizer.decided or self._synchronizer

    def _has_step_hooks(self) -> bool:
        hooks = (self._optimizer._optimizer_step_pre_hooks, self._optimizer._optimizer_step_post_hooks)
        if any(hooks):
            self._say("the optimizer has step hooks: updates wait for all gradients, so that a hook runs once a step")
        return any(map(bool, hooks))

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        """An optimizer that evaluates the model itself sees averaged gradients each time."""
        self._say("step(closure): updates wait for all gradients")

        def evaluate() -> Any:
            loss = closure()
            self.synchronize()
            self._forget_gradients()
            return loss

        self.flush()
        self._count_step()
        return self._whole_step(evaluate)

    def _drop_zeroed(self) -> None:
        """A gradient that was set to None after backward is not applied."""
        for each in self._parameters:
            if each.gradient is not None and not each.had_none and each.slot.parameter.grad is None:
                self._settle(each)
                each.gradient = None

    def _forget_gradients(self) -> None:
        for each in self._parameters:
            each.gradient, each.submitted = None, False

    # ---- forward ----

    def _before_forward(self, parameters: Iterable[nn.Parameter]) -> None:
        self._surroundings.check()
        if self._tuning is not None:
            self._tuning.enter(self._of[next(iter(parameters))].index)
        due = [known for each in parameters if (known := self._of[each]).due is not None]
        if due and self._synchronizer.plan.step_barrier:
            due = [each for each in self._parameters if each.due is not None]
        elif due:
            due += self._arrived(due)
        if due:
            for each in due:
                if _num_uses(each.slot.parameter) > each.num_uses:
                    raise _stale(each)
            self._update(due)
        if self._streams:
            self._wait_for_updates(parameters)

    def _wait_for_updates(self, parameters: Iterable[nn.Parameter]) -> None:
        """Those who came early were updated on the stream of another module."""
        for each in parameters:
            updated = self._of[each].updated
            if updated is not None and updated[0] != (current := torch.cuda.current_stream(each.device)):
                current.wait_event(updated[1])

    def _arrived(self, wanted: Sequence[_Parameter]) -> list[_Parameter]:
        """Those that come next in the order of use and need no waiting: one step for many costs little more than for
        one, so where communication is the faster of the two, all updates are one step as without a scheduler."""
        arrived = []
        while self._next_in_order < len(self._in_order):
            each = self._in_order[self._next_in_order]
            if each.due is not None and each not in wanted:
                if each.in_flight and not self._synchronizer.poll(each.index):
                    break
                arrived.append(each)
            self._next_in_order += 1
        return arrived

    @torch.no_grad()
    def _update(self, due: Sequence[_Parameter]) -> None:
        """Wait for these gradients and step these parameters, leaving `parameter.grad` as the user has left it."""
        values = due[0].due
        assert values is not None
        left: list[tuple[_Parameter, torch.Tensor | None]] = []
        for each in due:
            each.slot.check(each.slot.parameter)
            self._settle(each)
            left.append((each, each.slot.parameter.grad))
            each.slot.parameter.grad = each.gradient
        members = [(each.group, each.slot.parameter) for each in due if each.gradient is not None]
        if members:
            begin_ns = time.monotonic_ns()
            step_narrowed(self._optimizer, values.narrowed(members))
            if self._notes is not None:
                self._notes.updated([each.slot.name for each in due if each.gradient is not None], begin_ns)
        for device in self._streams:
            stream = torch.cuda.current_stream(device)
            updated = (stream, stream.record_event())
            for each in due:
                if each.slot.parameter.device == device:
                    each.updated = updated
        for each, grad in left:
            each.slot.parameter.grad = grad
            each.due = each.gradient = None

    # ---- what else touches gradients and weights ----

    def _flush_before(self, *_: Any, **__: Any) -> None:
        self.flush()

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            _log.info(message)


def _stale(each: _Parameter) -> StaleWeightError:
    return StaleWeightError(
        f"parameter {each.slot.name!r} was used before its update, and not by a module that was called as one; call "
        "legato.torch.flush(model) before using its weights, and compile a model before scheduling it"
    )


_num_uses: Callable[[torch.Tensor], int] = getattr(torch.Tensor, "_use_count", lambda _: 0)
"""References to a parameter that Python does not hold: a live graph that has saved it, or leads to it, has one.

One more than at step() is a graph of weights before their update. torch would notice only in its backward pass, after
the update, and speak of an operation in place.
"""
