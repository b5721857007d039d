"""Hooks: where a model's backward and forward passes meet the synchronisation of its gradients.

The life of one parameter through a step; its update runs in the pre-hook of the module that uses it next:

    backward                 step()                next forward
    gradient accumulated ─► submitted ─► update due ─► pre-hook of its module: wait, update, go on
            ▲                    │
            └── looked at before step(): waited for there, and nothing is left to overlap

Nobody may see weights whose update is due: a forward pass updates what its modules own just before they run; reading
the model otherwise (state_dict, parameters, load) flushes first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from legato._native import GradientHook, PlainPass
from legato.errors import ClosedError, LegatoError
from legato.observe import Timeline
from legato.observe.clock import Gatherer
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
from legato.torch.scheduling.gradients import GradientState, PendingGradient, cover
from legato.torch.scheduling.layers import LayerNotes
from legato.torch.scheduling.metrics import GradientWatch, Metrics
from legato.torch.scheduling.modules import Owners
from legato.torch.scheduling.nonfinite import NonFinite
from legato.torch.scheduling.parameters import ScheduledParameter, ScheduledParameters
from legato.torch.scheduling.steps import StaleWeightError, Steps
from legato.torch.scheduling.wrappers import Surroundings
from legato.torch.sync.elastic import ElasticSynchronizer
from legato.torch.sync.native import NativeSynchronizer
from legato.torch.sync.synchronizer import Slot, Synchronizer, is_shard, local_of
from legato.torch.tuning.live import Tuning
from legato.torch.tuning.pace import Pace

_current_backward = torch._C._current_graph_task_id
"""The number of the backward pass that calls a hook."""
_IN_FLIGHT = GradientState.IN_FLIGHT
"""For what runs for every tensor of every step: found in its class, it takes as long as three calls."""


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
        beside: Callable[[], Gatherer] | None = None,
        nonfinite: NonFinite | None = None,
    ) -> None:
        """`prefix` is what the synchronizer puts before the parameters' names; the timeline shows them with it.

        `beside` gives a group on which no gradient is under way in an order of its own, for what ranks tell of them.
        """
        self._model = model
        self._optimizer = optimizer
        self._parameters = ScheduledParameters(model, optimizer, make_synchronizer)
        self._surroundings = Surroundings(self._parameters.of)
        self._owners = Owners(model, list(self._parameters.of))
        comparison = None if make_comparison is None else make_comparison(self.slots)
        self._steps = Steps(model, optimizer, self._parameters, self._owners, comparison, nonfinite)
        self._passes_per_step = passes_per_step
        self._passes: dict[int, int] = {}
        self._backward = -1
        self._plain = PlainPass(_current_backward, torch.Tensor, PendingGradient, _IN_FLIGHT)
        self._aim: tuple[Synchronizer, Tuning | None] | None = None
        """Whom the hooks take plain gradients to, and whom they tell of them."""
        self._timeline = timeline
        self._prefix = prefix
        self._beside = beside
        self._hooks: list[GradientHook] = []
        """By the synchronizer's indices."""
        self._hook_handles: list[RemovableHandle] = []
        self._handles: list[RemovableHandle] = []
        self._attach()
        self.note()

    @classmethod
    def of(cls, model: nn.Module) -> "Schedule":
        """The schedule attached to a model; the first, where it has several optimizers."""
        schedules = [owner for owner in owners_of(model) if isinstance(owner, cls)]
        if not schedules:
            raise LegatoError("this model is not scheduled; call legato.torch.schedule(model, optimizer) first")
        return schedules[0]

    @classmethod
    def owning(cls, parameter: torch.Tensor) -> "tuple[ScheduledParameters, ScheduledParameter] | None":
        """What a schedule knows of a parameter, if one has it: its hook leads there."""
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            native = getattr(hook, "__self__", None)
            if isinstance(native, GradientHook):
                return native.otherwise.__self__._parameters, native.each
        return None

    # ---- what a user asks for ----

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only accumulate; the first one after it synchronises what has come together."""
        before, self._parameters.synchronising = self._parameters.synchronising, False
        try:
            yield
        finally:
            self._parameters.synchronising = before

    def flush(self) -> None:
        """Apply every update that is due, so that the weights are those after the user's last step()."""
        self._steps.flush()

    def watch(self, *, batch_size: float, decay: float) -> None:
        """Have every gradient measured from the next step on, with the other ranks of the job."""
        assert self._beside is not None
        name = f"{self._prefix}/metrics"
        self._parameters.watch = GradientWatch(self._beside(), name, self.slots, batch_size=batch_size, decay=decay)

    def metrics(self) -> Metrics:
        """What has been measured; waits for the averages of the last step."""
        if self._parameters.watch is None:
            raise LegatoError("nobody watches the gradients of this model; call legato.torch.watch_gradients first")
        self.flush()
        return self._parameters.watch.read()

    def note(self) -> None:
        """Take notes for the timeline if it is on now, otherwise no longer."""
        if self._parameters.notes is not None:
            self._parameters.notes.detach()
            self._parameters.notes = None
        self._plain.is_timed = self._timeline is not None and self._timeline.on
        self._plain.take()
        if self._timeline is not None and self._timeline.on:
            layers = self._owners.layers()
            parameters = list(self._parameters.of)
            notes = LayerNotes(self._timeline, self._prefix, layers, parameters, self._steps.num_steps)
            self._parameters.notes = notes

    @property
    def synchronizer(self) -> Synchronizer:
        """What moves its gradients."""
        return self._parameters.synchronizer

    @property
    def slots(self) -> list[Slot]:
        """Its parameters, in the order of the synchronizer's indices."""
        return [each.slot for each in self._parameters.all]

    @property
    def num_steps(self) -> int:
        """Those that the job has taken with this model."""
        synchronizer = self._parameters.synchronizer
        known = synchronizer.num_steps if isinstance(synchronizer, ElasticSynchronizer) else 0
        return max(known, self._steps.num_steps)

    def under_way(self) -> Iterator[tuple[int, int]]:
        """Index and bytes of each gradient whose average has not come yet. Called between two steps."""
        for each in self._parameters.all:
            if each.state is GradientState.IN_FLIGHT and not self._parameters.synchronizer.poll(each.index):
                yield each.index, each.slot.parameter.nbytes

    def tune(self, tuning: Tuning) -> None:
        """Have every step measured, and follow plans that are agreed on meanwhile."""
        self._parameters.tuning = tuning

    def keep_pace(self, pace: Pace) -> None:
        """Have it know what every step is made of."""
        self._parameters.pace = pace

    def remove(self) -> None:
        """The job ends: leave the model as it was, and an optimizer that refuses to step alone."""
        self.take_off()
        cover_step(self._optimizer, refuse)

    def let_go(self) -> None:
        """The job is left at once: gradients that are under way are lost, and updates that are due stay due."""
        cover_step(self._optimizer, refuse)
        self._remove_hooks()
        for each in self._parameters.all:
            if isinstance(each.slot.parameter.grad, PendingGradient):
                each.slot.parameter.grad = None
            if isinstance(each.gradient, PendingGradient):
                cover(each.gradient, _lost)

    def take_off(self) -> None:
        """Flush, then leave model and optimizer as they were."""
        self._steps.admit()
        self.flush()
        self._remove_hooks()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._owners.detach()
        if self._parameters.notes is not None:
            self._parameters.notes.detach()
        if self._parameters.tuning is not None:
            self._parameters.tuning.close()
        remove_owner(self._model, self)
        uncover_step(self._optimizer)
        self._parameters.settle_all()
        self._parameters.synchronizer.close()

    def _attach(self) -> None:
        for each in self._parameters.all:
            parameter = each.slot.parameter
            each.look = partial(self._look_at, each, None)
            before, after = self._before_accumulation, self._after_accumulation
            hook = GradientHook(self._plain, each, each.index, each.look, before, after)
            self._hooks.append(hook)
            # Copies and pickles of a parameter leave its hooks behind, and no compiler looks into them.
            self._hook_handles += [
                parameter.register_hook(hook.before),
                parameter.register_post_accumulate_grad_hook(hook.after),
            ]
        self._owners.attach(Hook(self._before_forward))
        add_owner(self._model, self)
        self._handles += cover_reading(self._model)
        flush = Hook(self._flush_before)
        self._handles += [
            self._optimizer.register_state_dict_pre_hook(flush),
            self._optimizer.register_load_state_dict_pre_hook(flush),
        ]

    def _remove_hooks(self) -> None:
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles.clear()
        self._hooks.clear()

    # ---- backward ----

    # A native hook calls these for what is not plain, and until a pass has begun.

    def _before_accumulation(self, each: ScheduledParameter, gradient: torch.Tensor) -> None:
        """Autograd adds to `parameter.grad` in place: what is under way there has to come home first."""
        del gradient
        if each.due is not None:
            raise StaleWeightError(each.slot.name)
        if each.state is _IN_FLIGHT:
            self._parameters.settle(each)

    def _after_accumulation(self, each: ScheduledParameter, parameter: nn.Parameter) -> None:
        parameters = self._parameters
        self._plain.note(each.index)
        if parameters.tuning is not None:
            parameters.tuning.gradient(each.index)
        if not parameters.synchronising:
            return
        if self._passes_per_step > 1:
            passes = self._passes.get(each.index, 0) + 1
            self._passes[each.index] = passes % self._passes_per_step
            if passes < self._passes_per_step:
                return
        backward = _current_backward()
        if backward != self._backward:
            self._begin_backward(backward)
        whole = parameter.grad
        assert whole is not None
        is_plain = type(whole) is torch.Tensor
        gradient = whole if is_plain else local_of(whole)
        if each.state is _IN_FLIGHT:
            # FSDP's first gradient after a step that was skipped; it calls no hook before it gives one.
            self._before_accumulation(each, gradient)
            parameter.grad = whole
        if parameters.watch is not None:
            parameters.watch.submitted(each.index, gradient)
        # What `ScheduledParameters.submit` does, without a call: this runs for every tensor of every step.
        if parameters.note_gradient is not None:
            parameters.note_gradient(each.index, gradient)
        is_memory_enough = parameters.synchronizer.submit(each.index, gradient)
        each.backward, each.gradient, each.had_none = backward, gradient, False
        each.state = _IN_FLIGHT
        if is_memory_enough and is_plain:
            cover(gradient, each.look)
            return
        # A sparse average is another tensor than what was given, and so is that of an unwritten conjugate or negative.
        is_another = gradient.is_sparse or gradient.is_conj() or gradient.is_neg()
        given = None if is_another else gradient
        parameter.grad = _pending(whole, partial(self._look_at, each, given))

    def _begin_backward(self, backward: int) -> None:
        self._backward = backward
        Variable._execution_engine.queue_callback(self._end_backward)
        parameters = self._parameters
        aim = parameters.synchronizer, parameters.tuning
        if aim != self._aim:
            self._aim = aim
            self._aim_hooks(*aim)
        is_plain = self._passes_per_step == 1 and parameters.watch is None and parameters.note_gradient is None
        self._plain.number = backward if is_plain else -1

    def _aim_hooks(self, synchronizer: Synchronizer, tuning: Tuning | None) -> None:
        tell = None if tuning is None else tuning.gradient
        for index, hook in enumerate(self._hooks):
            if isinstance(synchronizer, NativeSynchronizer):
                synchronizer.aim(hook, index, tell)
            else:
                hook.rest()

    def _end_backward(self) -> None:
        """Every rank takes part in every task, also for parameters that its own pass did not use.

        At the end of backward, not in step(): whoever clips in between waits for the others.
        """
        if self._parameters.notes is not None:
            self._parameters.notes.end_pass(self._plain.take())
        for device in self._steps.streams:
            self._steps.streams[device] = torch.cuda.current_stream(device)
        self.flush()  # what this pass did not use still owes its last update, and its gradient makes room now
        for each in self._parameters.all:
            if each.backward != self._backward:
                self._parameters.settle(each)
                self._parameters.submit(each, None)
                if each.slot.parameter.grad is None:
                    each.gradient = None  # what a skipped step has left is not applied
                    # Of the parameter's shape, without memory of its own: the gradient comes from elsewhere, if at all.
                    shape = each.slot.whole(each.slot.weight().new_zeros(()).expand(each.slot.shape))
                    each.slot.parameter.grad = _pending(shape, partial(self._look_at, each, None))

    def _look_at(self, each: ScheduledParameter, given: torch.Tensor | None) -> torch.Tensor:
        """Somebody uses the values of a pending gradient; after step(), its update has to come first."""
        each.slot.check(each.slot.parameter)
        if each.state is GradientState.IN_FLIGHT:
            if each.due is None and self._steps.overlap:
                self._steps.say(
                    "gradients are read between backward and step (clipping, a gradient scaler): such steps wait for "
                    "all of them and overlap with backward only; over native, and over c10d with policy rsag or dear, "
                    "legato.torch.clip_grad_norm_ and legato.torch.GradScaler do not wait for them"
                )
            self._parameters.settle(each)
            if (stream := self._steps.streams.get(each.slot.parameter.device)) is not None:
                # Whoever looks on another stream has the average copied there; all others still find it ready.
                stream.wait_stream(torch.cuda.current_stream(stream.device))
        gradient = each.gradient if given is None else given
        if each.due is not None:
            self._steps.update([each])
        # Where no rank had a gradient, whoever has taken this one for a gradient reads zeros.
        return torch.zeros_like(each.slot.parameter) if gradient is None else each.slot.whole(gradient)

    # ---- forward ----

    def _before_forward(self, used: Iterable[nn.Parameter]) -> None:
        self._surroundings.check()
        parameters = [self._parameters.of[each] for each in used]
        if torch.is_grad_enabled():  # not where one rank evaluates the model, and the others do something else
            self._steps.admit()
        if self._parameters.pace is not None:
            self._parameters.pace.enter()
        if self._parameters.tuning is not None:
            self._parameters.tuning.enter(parameters[0].index)
        due = [each for each in parameters if each.due is not None]
        if due:
            self._steps.update_before_use(due)
        if self._steps.streams:
            _wait_for_updates(parameters)

    def _flush_before(self, *_: Any, **__: Any) -> None:
        self.flush()


def _lost() -> torch.Tensor:
    """What is in the place of an average that will not come."""
    raise ClosedError("the average of this gradient was under way when its job was left")


def _pending(like: torch.Tensor, settle: Callable[[], torch.Tensor]) -> PendingGradient:
    """In place of a gradient `like` this one, until its average is here."""
    if not is_shard(like):
        return PendingGradient.of(like, settle)
    # Only who has DTensors waits for torch to import them.
    from legato.torch.scheduling.pending_shard import PendingShard

    return PendingShard.of(like, settle)


def _wait_for_updates(parameters: Iterable[ScheduledParameter]) -> None:
    """Those who came early were updated on the stream of another module."""
    for each in parameters:
        updated = each.updated
        if updated is not None and updated[0] != (current := torch.cuda.current_stream(each.slot.parameter.device)):
            current.wait_event(updated[1])
