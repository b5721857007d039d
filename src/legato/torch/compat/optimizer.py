"""DistributedOptimizer: a user's optimizer that averages gradients before it steps, in Horovod's interface.

The optimizer stays the same object: it gets a subclass of its own class, so that schedulers, scalers and state that
were attached to it stay attached, and `isinstance` says what it said.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from legato.errors import ClosedError, InputError, OrderError
from legato.job import Job
from legato.torch import api
from legato.torch.compat import joining
from legato.torch.compat.operations import (
    Adasum,
    Average,
    Operations,
    ReduceOp,
    Reduction,
    Sum,
    check_adasum,
    operations,
)
from legato.torch.compat.process_sets import ProcessSet, global_process_set, operations_of
from legato.torch.compat.reducer import Reducer
from legato.torch.compression import Compression, Compressor
from legato.torch.relaxed.asynchronous import Asynchronous
from legato.torch.scheduling.agreement import agree_on_slots
from legato.torch.scheduling.modules import Frozen
from legato.torch.sync.synchronizer import Slot

_REMEDY = (
    "unfreeze it before DistributedOptimizer(optimizer), or give the optimizer a group of its own for it when it is "
    "unfrozen, by add_param_group: then all are collected again"
)

NamedParameters = Iterable[tuple[str, torch.nn.Parameter]]


class Gradients:
    """How the gradients of one optimizer are averaged, until it is taken apart or the job ends."""

    def __init__(
        self,
        job: Job,
        members: Operations | None,
        names: dict[torch.nn.Parameter, str],
        compression: type[Compressor],
        passes_per_step: int,
        factors_of: Callable[[int], tuple[float, float] | None],
        sparse_as_dense: bool,
    ) -> None:
        """`factors_of` a number of ranks: where there are none, it is not gradients that are averaged, but ranks' own
        steps that Adasum combines."""
        self._job = job
        self._members = members
        """The ranks among which gradients are averaged; None where this one is not of them, and steps alone."""
        self._is_global = members is operations(job)
        self._names = names
        self.compression = compression
        self._factors_of = factors_of
        self._scale()
        self._sparse_as_dense = sparse_as_dense
        self.passes_per_step = passes_per_step
        self.reducer: Reducer | None = None
        self._exchange: Asynchronous | None = None
        self._groups: Sequence[dict[str, Any]] = ()
        self._slots: list[Slot] = []
        self._frozen = Frozen((), _REMEDY)
        self.skip = False
        """Whether step() leaves synchronisation to the user."""
        self.is_synchronised = False
        """Whether the user has synchronised since the last step."""
        self.closed = False
        job.keep(self)

    def attach(self, groups: Sequence[dict[str, Any]]) -> None:
        """Average the gradients of these parameter groups, instead of those before, from now on."""
        self._detach()
        self._groups = groups
        members = self._members
        if members is None or members.group is None or self.closed:
            return
        self._frozen = Frozen(self._named(groups), _REMEDY)
        self._slots = agree_on_slots(members.group, members.new_name("parameters"), self._slots_of(groups))
        if self._job.settings.staleness or self.combines:
            return
        self.reducer = Reducer(
            members.group,
            members.new_name("optimizer"),
            self._slots,
            self.compression,
            passes_per_round=self.passes_per_step,
            prescale_factor=self.factors[0],
            postscale_factor=self.factors[1],
            sparse_as_dense=self._sparse_as_dense,
        )
        if self._is_global:
            joining.take_part(self._job, self.reducer)

    def exchange(self) -> Asynchronous | None:
        """Where ranks train asynchronously, what they exchange after each step.

        Made at the first step: scripts broadcast parameters after they have made their optimizer.
        """
        members = self._members
        if self._exchange is None and self._slots and self._job.settings.staleness:
            assert members is not None
            assert members.group is not None
            name = members.new_name("optimizer")
            self._exchange = Asynchronous(members.group, name, self._slots, self._job.settings.staleness)
        return self._exchange

    def combine(self, starts: Sequence[torch.Tensor]) -> None:
        """Make one step for all of every rank's own, by Adasum: `starts` are the weights before it."""
        assert self._members is not None
        weights = [slot.parameter.detach() for slot in self._slots]
        steps = [self.compression.compress(weight - start) for weight, start in zip(weights, starts, strict=True)]
        adasum = Reduction(op=Adasum)
        handles = [
            self._members.allreduce(step, f"{slot.name}.step", adasum)
            for slot, (step, _) in zip(self._slots, steps, strict=True)
        ]
        for weight, start, handle, (_, context) in zip(weights, starts, handles, steps, strict=True):
            weight.copy_(start + self.compression.decompress(handle.wait(), context))

    def weights(self) -> list[torch.Tensor]:
        """What they are now."""
        return [slot.parameter.detach().clone() for slot in self._slots]

    def check(self) -> None:
        """An error where a step would leave gradients that nobody has averaged unnoticed."""
        if self.closed and self._members is not None and self._members.size > 1:
            raise ClosedError(
                "the job of this optimizer has ended, and nobody averages gradients any more; to train on, call "
                "legato.torch.init() and DistributedOptimizer(optimizer) again"
            )
        self._frozen.check()

    def remove(self) -> None:
        """The job ends: from now on the optimizer refuses to step, unless it was alone anyway."""
        self._detach()
        self.closed = True

    def let_go(self) -> None:
        """The job is left at once, and what is under way is lost."""
        if self.reducer is not None:
            self.reducer.let_go()
        self.closed = True

    def begin_anew(self) -> None:
        """The job has other members now, and what was on its way between the old ones is gone."""
        if self.reducer is not None:
            joining.leave(self._job, self.reducer)
            self.reducer.remove(waits=False)
        self.reducer = self._exchange = None
        self.skip = self.is_synchronised = False
        if not self._is_global:
            self.remove()  # its process set is gone
            return
        self._members = operations(self._job)
        self._scale()
        self.attach(self._groups)

    def take_apart(self) -> None:
        """Leave the parameters to somebody else."""
        if not self.closed:
            self._job.forget(self)
            self.remove()

    def _scale(self) -> None:
        factors = self._factors_of(1 if self._members is None else self._members.size)
        self.combines = factors is None
        self.factors = factors or (1.0, 1.0)

    def _detach(self) -> None:
        if self.reducer is not None:
            joining.leave(self._job, self.reducer)
            self.reducer.remove()
            self.reducer = None
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        self._slots = []

    def _slots_of(self, groups: Iterable[dict[str, Any]]) -> list[Slot]:
        slots: dict[torch.nn.Parameter, Slot] = {}
        for name, parameter in self._named(groups):
            if parameter.requires_grad:
                slots.setdefault(parameter, Slot(name, parameter))
        return list(slots.values())

    def _named(self, groups: Iterable[dict[str, Any]]) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for index, group in enumerate(groups):
            for place, parameter in enumerate(group["params"]):
                yield self._names.get(parameter, f"noname.{index}.{place}"), parameter


class Distributed(torch.optim.Optimizer):
    """What a distributed optimizer does differently; the user's class follows it in the order of resolution."""

    _legato: Gradients

    def synchronize(self) -> None:
        """Wait until every gradient holds its average: before clipping, for example."""
        self._legato.is_synchronised = True
        if self._legato.reducer is not None:
            self._legato.reducer.finish()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() in here takes the gradients as they are, after `synchronize`."""
        if self._legato.combines:
            raise OrderError("op=Adasum combines the ranks' steps, not their gradients: there is nothing to skip")
        self._legato.skip = True
        try:
            yield
        finally:
            self._legato.skip = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Average after so many backward passes."""
        self._legato.passes_per_step = passes
        if self._legato.reducer is not None:
            self._legato.reducer.set_passes_per_round(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average, then step as the user's class does; where that calls a closure, average what the closure made."""
        self._legato.check()
        self._opt_called = True  # what a learning rate scheduler's own cover of step() notes
        exchange = self._legato.exchange()
        if exchange is not None:
            result = super().step(closure) if closure is not None else super().step()
            exchange.after_step()
            return result
        if self._legato.combines:
            starts = self._legato.weights()
            result = super().step(closure) if closure is not None else super().step()
            self._legato.combine(starts)
            return result
        if closure is None:
            self._average()
            return super().step()

        def evaluate() -> Any:
            loss = closure()
            self._average()
            return loss

        return super().step(evaluate)

    # Schedulers cover a step() without the first mark and warn where it is lost; loading a state covers one without
    # the second with hooks that the user's class runs already.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._legato.reducer is not None and self._legato.reducer.in_flight:
            raise OrderError(
                "zero_grad() between backward() and step(): gradients are still on their way; "
                "call step() or synchronize() first"
            )
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._legato.attach(self.param_groups)

    def _average(self) -> None:
        if not self._legato.skip:
            if self._legato.is_synchronised:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
                    "gradients that are averages already travel once more",
                    stacklevel=3,
                )
            self.synchronize()
        self._legato.is_synchronised = False


def DistributedOptimizer(  # noqa: N802 - Horovod's name, for what looks like a class to its users
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    job: Job | None = None,
) -> Distributed:
    """The optimizer, with gradients averaged (or summed) over all ranks while backward runs, and awaited in step().

    With `op=Adasum`, each rank takes a step of its own, and these are combined. Ranks outside of the `process_set`
    step alone. `num_groups` and `groups` say what Horovod sends together; here small tensors always travel together.
    """
    del num_groups
    _check_groups(groups)
    if backward_passes_per_step < 1:
        raise InputError(f"backward_passes_per_step is {backward_passes_per_step}; accepted is 1 or more")
    job = api.current(job)
    members = operations(job) if process_set.process_set_id == 0 else None
    if members is None and process_set.included():
        members = operations_of(process_set)
    if isinstance(optimizer, Distributed):
        if not optimizer._legato.closed:
            raise InputError("this optimizer is distributed already")
        undistribute(optimizer)  # its job has ended
    factors_of = partial(_factors, op, gradient_predivide_factor)
    factors = factors_of(1 if members is None else members.size)
    if job.settings.staleness and (compression is not Compression.none or factors != (1.0, 1.0)):
        raise InputError(
            f"staleness is {job.settings.staleness} (LEGATO_STALENESS, BYTEPS_ENABLE_ASYNC): what ranks exchange then "
            "is averaged as it is, without compression, another op or a predivide factor"
        )
    gradients = Gradients(
        job,
        members,
        _names(optimizer, named_parameters),
        compression,
        backward_passes_per_step,
        factors_of,
        sparse_as_dense,
    )
    gradients.attach(optimizer.param_groups)
    vars(optimizer).pop("step", None)  # a scheduler's cover, which calls the old class; see Distributed.step
    own = type(optimizer)
    optimizer.__class__ = type(own.__name__, (Distributed, own), {"__module__": own.__module__})
    vars(optimizer)["_legato"] = gradients
    assert isinstance(optimizer, Distributed)
    return optimizer


def undistribute(optimizer: Distributed) -> Gradients:
    """Make the optimizer what it was before `DistributedOptimizer`; what it was told there."""
    gradients = optimizer._legato
    gradients.take_apart()
    del optimizer._legato
    optimizer.__class__ = type(optimizer).__mro__[2]
    return gradients


def _names(optimizer: torch.optim.Optimizer, named: NamedParameters | None) -> dict[torch.nn.Parameter, str]:
    if named is None:
        return {}
    pairs = list(named)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InputError("named_parameters must be (name, parameter) pairs, as model.named_parameters() gives them")
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise InputError(f"named_parameters has these names more than once: {', '.join(twice)}")
    names = {parameter: name for name, parameter in pairs}
    num_unnamed = sum(each not in names for group in optimizer.param_groups for each in group["params"])
    if num_unnamed:
        raise InputError(f"named_parameters lacks {num_unnamed} of the optimizer's parameters; name all or none")
    return names


def _check_groups(groups: Any) -> None:
    """They change nothing here, but a mistake in them is one everywhere."""
    if groups is None or (isinstance(groups, int) and groups > 0):
        return
    if not isinstance(groups, list):
        raise InputError(f"groups is {groups!r:.80}; accepted are a number from 1 on, or a list of lists of parameters")
    members = [each for group in groups for each in group]
    if not all(isinstance(each, torch.Tensor) for each in members):
        raise InputError("groups has something that is not a tensor; accepted are lists of parameters")
    if len({id(each) for each in members}) < len(members):
        raise InputError("groups has a parameter more than once; each may be in one group")


def _factors(op: ReduceOp, predivide: float, size: int) -> tuple[float, float] | None:
    """What gradients are multiplied with before and after they are averaged; None where Adasum combines steps."""
    if op == Adasum and size > 1:
        check_adasum(size)
        return None
    if op == Average:
        return 1.0 / predivide, predivide
    if op not in (Sum, Adasum):
        raise InputError(f"op is {op!s}; gradients can be combined by Average, Sum or Adasum")
    if predivide != 1.0:
        raise InputError("gradient_predivide_factor divides before an average; use op=Average with it")
    return 1.0, float(size)
