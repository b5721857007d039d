"""Steps: what the user's `step()` does at once, and the updates that it leaves due until weights are used again."""

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from legato.errors import LegatoError
from legato.torch.scheduling.attachments import cover_step
from legato.torch.scheduling.divergence import Comparison, digest
from legato.torch.scheduling.gradients import GradientState, bare
from legato.torch.scheduling.modules import Enrolment, Owners
from legato.torch.scheduling.nonfinite import NonFinite
from legato.torch.scheduling.parameters import ScheduledParameter, ScheduledParameters
from legato.torch.scheduling.shards import gather, mesh_of
from legato.torch.scheduling.slices import SlicedUpdate, is_elementwise, is_large
from legato.torch.scheduling.update import Hyperparameters, is_separable, step_narrowed
from legato.torch.sync.elastic import ElasticSynchronizer
from legato.torch.sync.switching import Switching

_log = logging.getLogger(__name__)


class StaleWeightError(LegatoError):
    """A parameter was used before its update was applied: its module was not called in the usual way."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"parameter {name!r} was used before its update, and not by a module that was called as one; call "
            "legato.torch.flush(model) before using its weights, and compile a model before scheduling it"
        )


class Steps:
    """Of one optimizer. The first step shows whether it can be stepped for some parameters at a time (`overlap`)."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: ScheduledParameters,
        owners: Owners,
        comparison: Comparison | None,
        nonfinite: NonFinite | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._owners = owners
        self._enrolment = Enrolment(model, optimizer)
        self._comparison = comparison
        self._nonfinite = nonfinite
        if nonfinite is not None:
            parameters.note_gradient = nonfinite.note
            parameters.synchronizer.set_measured()
        self._own_step = cover_step(optimizer, self.step)
        self.overlap: bool | None = None
        self._closure_first: bool | None = None
        """Whether `step(closure)` is `closure()` and then `step()`; None before the first closure."""
        self.num_steps = 0
        self._mesh = mesh_of(each.slot.parameter for each in parameters.all)
        self._in_order: list[ScheduledParameter] = []
        """By first use; none of shards, which all ranks of a mesh update in the same order, whatever has arrived."""
        self._next_in_order = 0
        cuda = {each.slot.parameter.device for each in parameters.all if each.slot.parameter.is_cuda}
        self.streams = {device: torch.cuda.current_stream(device) for device in cuda}
        """Those on which the last backward pass was asked for: where a script expects its gradients."""
        self._said: set[str] = set()
        self._rates: Hyperparameters | None = None
        """Of an elastic job: of the last step, where nobody has looked at its averages before their updates."""
        self._has_newcomers = False
        self._admits = False
        """Of an elastic job: whether newcomers join before the next step, as this one has shown."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """What the optimizer does in place of its own; where updates can come later, nothing is waited for."""
        self._rates = None
        result = self._take(closure)
        if isinstance(self._parameters.synchronizer, ElasticSynchronizer):
            self._parameters.synchronizer.end_step(self._rates)
        self._admits = self._has_newcomers
        return result

    def _take(self, closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            return self._step()
        if not self._closure_first or self.overlap is False:
            return self._evaluate(closure)
        with torch.enable_grad():
            loss = closure()  # its forward pass applies what the last step left due
        self._step()
        return loss

    def _step(self) -> Any:
        begin_ns, number = time.monotonic_ns(), self.num_steps
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # what LR schedulers ask for
        self._begin()
        self._parameters.drop_zeroed()
        self._parameters.submit_missing()
        if self._nonfinite is not None and self._nonfinite.forbids(self._parameters, self.num_steps):
            return self._skip()
        if not self.overlap:
            return self._at_once()
        if not any(each.state is GradientState.IN_FLIGHT for each in self._parameters.all):
            self._parameters.forget_gradients()
            return self._whole()
        values = Hyperparameters(self._optimizer)
        if all(each.state is GradientState.IN_FLIGHT and not each.factors for each in self._parameters.all):
            self._rates = values
        for each in self._parameters.all:
            each.due = values
            each.num_uses = _num_uses(each.slot.parameter)
        self._next_in_order = 0
        if self._parameters.notes is not None:
            self._parameters.notes.handed_over(begin_ns, number)
        return None

    def _skip(self) -> None:
        """The averages are home and nobody applies them."""
        self._parameters.settle_all()
        self._parameters.forget_gradients()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # what LR schedulers ask for

    def flush(self) -> None:
        """Apply every update that is due, so that the weights are those after the user's last step()."""
        due = [each for each in self._parameters.all if each.due is not None]
        if due:
            self.update(due)
        self._parameters.synchronizer.confirm()

    def admit(self) -> None:
        """Let those join who wait, with the state in which the next step begins: a script steps its LR scheduler, and
        updates its scaler, after the optimizer's step."""
        if not self._admits:
            return
        self._admits = self._has_newcomers = False
        self.flush()
        assert isinstance(self._parameters.synchronizer, ElasticSynchronizer)
        self._parameters.synchronizer.admit()

    def update_before_use(self, due: list[ScheduledParameter]) -> None:
        """The forward pass is about to use these: apply what they owe, and what else is there already."""
        if self._parameters.synchronizer.plan.step_barrier:
            due = [each for each in self._parameters.all if each.due is not None]
        else:
            due += self._arrived(due)
        for each in due:
            if _num_uses(each.slot.parameter) > each.num_uses:
                raise StaleWeightError(each.slot.name)
        self.update(due)

    @torch.no_grad()
    def update(self, due: Sequence[ScheduledParameter]) -> None:
        """Wait for these gradients and step these parameters, leaving `parameter.grad` as the user has left it."""
        for each in due:
            each.slot.check(each.slot.parameter)
        sliced = [each for each in due if self._goes_in_slices(each)]
        for each in sliced:
            self._update_in_slices(each)
        together = [each for each in due if each not in sliced]
        if together:
            self._update_together(together)

    def _update_together(self, due: Sequence[ScheduledParameter]) -> None:
        """In one step of the optimizer."""
        values = due[0].due
        assert values is not None
        left: list[tuple[ScheduledParameter, torch.Tensor | None]] = []
        self._parameters.settle(*due)
        for each in due:
            left.append((each, each.slot.parameter.grad))
            each.slot.parameter.grad = None if each.gradient is None else each.slot.whole(each.gradient)
        members = [each for each in due if each.gradient is not None]
        if members:
            begin_ns = time.monotonic_ns()
            step_narrowed(self._optimizer, values.narrowed((each.group, each.slot.parameter) for each in members))
            self._note(members, begin_ns)
        for device in self.streams:
            stream = torch.cuda.current_stream(device)
            updated = (stream, stream.record_event())
            for each in due:
                if each.slot.parameter.device == device:
                    each.updated = updated
        for each, grad in left:
            each.slot.parameter.grad = grad
            each.applied()

    def _goes_in_slices(self, each: ScheduledParameter) -> bool:
        """What has begun so goes on so."""
        return each.slices is not None or (each.is_elementwise and is_large(each.slot.parameter))

    def _update_in_slices(self, each: ScheduledParameter) -> None:
        """While the rest arrives, where it arrives in place. Whoever interrupts a wait finds the first slices updated,
        and the next call goes on behind them."""
        parameters = self._parameters
        # A watch looks at a whole average before anything multiplies it.
        in_place = parameters.synchronizer.arrives_in_place(each.index) and parameters.watch is None
        if each.had_none or not in_place:
            parameters.settle(each)
        if each.gradient is None:
            each.applied()
            return
        if each.slices is None:
            assert each.due is not None
            gradient = bare(each.gradient)
            each.slices = SlicedUpdate(self._optimizer, each.due, each.group, each.slot.parameter, gradient)
        slices = each.slices
        while not slices.is_done:
            if each.state is GradientState.IN_FLIGHT:
                parameters.settle_first(each, slices.gradient, slices.next_end)
            begin_ns = time.monotonic_ns()
            slices.step()
            self._note([each], begin_ns)
        parameters.settle(each)
        each.applied()

    def say(self, message: str) -> None:
        """Once."""
        if message not in self._said:
            self._said.add(message)
            _log.info(message)

    def _begin(self) -> None:
        self._enrolment.check()
        self.flush()  # what this forward pass did not use still owes its last update
        self.num_steps += 1
        if self._comparison is not None:
            self._comparison.before_step(self.num_steps)
        parameters = self._parameters
        if parameters.notes is not None:
            parameters.notes.begin_step(self.num_steps)
        if parameters.pace is not None:
            synchronizer = parameters.synchronizer
            known = synchronizer.num_steps if isinstance(synchronizer, ElasticSynchronizer) else self.num_steps
            parameters.pace.step(known)
        if parameters.tuning is not None:
            parameters.tuning.step()
        if isinstance(parameters.synchronizer, ElasticSynchronizer):
            self._has_newcomers = parameters.synchronizer.begin_step()
        if isinstance(parameters.synchronizer, Switching):
            parameters.synchronizer = parameters.synchronizer.decided or parameters.synchronizer

    def _at_once(self) -> Any:
        """Wait for everything, then take the whole step: the first time, and for optimizers that cannot be divided."""
        parameters = self._parameters
        parameters.settle_all()
        parameters.forget_gradients()
        has_gradients = any(each.slot.parameter.grad is not None for each in parameters.all)
        if self.overlap is not None or not has_gradients:  # a step before training says nothing of the order of use
            return self._whole()
        order = self._owners.order()
        parameters.synchronizer.set_order(order)
        if parameters.tuning is not None:
            parameters.tuning.begin(order)
        if self._mesh is None:
            self._in_order = [parameters.all[index] for index in order]
        if has_step_hooks(self._optimizer):
            self.say("the optimizer has step hooks: updates wait for all gradients, so that a hook runs once a step")
            self.overlap = False
            return self._whole()
        self.overlap = is_separable(self._optimizer)
        if self._mesh is not None:
            self.overlap = all(overlap for (overlap,) in gather(self._mesh, [self.overlap]))
        if not self.overlap:
            self.say(f"{type(self._optimizer).__name__} steps its parameters together: updates wait for all gradients")
            return None
        if self._mesh is not None:
            return None  # shards are updated whole
        for each in parameters.all:
            if not each.slot.is_sparse and is_large(each.slot.parameter):
                each.is_elementwise = is_elementwise(self._optimizer, each.group, each.slot.parameter)
                if not each.is_elementwise:
                    self.say(f"{type(self._optimizer).__name__} looks at whole tensors: large ones are waited for")
        return None

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Let the optimizer evaluate the model itself; it sees averaged gradients each time.

        The first time shows whether it does so once and before anything else, as most do.
        """
        self._begin()
        is_trial = self._closure_first is None
        before = self._weights() if is_trial else None
        untouched: list[bool] = []

        def evaluate() -> Any:
            if is_trial:
                untouched.append(self._weights() == before)
            loss = closure()
            self._parameters.submit_missing()
            self._parameters.settle_all()
            self._parameters.forget_gradients()
            return loss

        result = self._own_step(evaluate)
        if is_trial:
            self._closure_first = untouched == [True] and steps_without_closure(self._optimizer)
        if not self._closure_first:
            what = "has step hooks" if has_step_hooks(self._optimizer) else "evaluates the closure in a way of its own"
            self.say(f"{type(self._optimizer).__name__} {what}: updates wait for all gradients")
        return result

    def _weights(self) -> list[int]:
        """A number for each parameter, which another value of it would change."""
        slots = [each.slot for each in self._parameters.all]
        return [int(digest(slot.in_order(slot.weight()))) for slot in slots]

    def _whole(self) -> Any:
        begin_ns = time.monotonic_ns()
        result = self._own_step()
        self._note(self._parameters.all, begin_ns)
        return result

    def _note(self, updated: Iterable[ScheduledParameter], begin_ns: int) -> None:
        if self._parameters.notes is not None:
            self._parameters.notes.updated([each.slot.name for each in updated], begin_ns)

    def _arrived(self, wanted: Sequence[ScheduledParameter]) -> list[ScheduledParameter]:
        """Those that come next in the order of use and need no waiting: one step for many costs little more than for
        one, so where communication is the faster of the two, all updates are one step as without a scheduler."""
        arrived = []
        while self._next_in_order < len(self._in_order):
            each = self._in_order[self._next_in_order]
            if each.due is not None and each not in wanted:
                in_flight = each.state is GradientState.IN_FLIGHT
                if in_flight and not self._parameters.synchronizer.poll(each.index):
                    break
                arrived.append(each)
            self._next_in_order += 1
        return arrived


def steps_without_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step()` is a step, and nothing but the closure comes before it in `step(closure)`."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is None and not has_step_hooks(optimizer)


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


_num_uses: Callable[[torch.Tensor], int] = getattr(torch.Tensor, "_use_count", lambda _: 0)
"""References to a parameter that Python does not hold: a live graph that has saved it, or leads to it, has one.

One more than at step() is a graph of weights before their update. torch would notice only in its backward pass, after
the update, and speak of an operation in place.
"""
