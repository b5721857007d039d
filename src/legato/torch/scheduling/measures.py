"""Measured gradients: what can be known of averages, and done to them, before they are here.

    backward                    clip_grad_norm_, unscale_            the first update, or whoever reads the norm
    gradients ─► their ranks    a factor is left with each ◄──────── waits for the measures, finds the factor
                   │ sum, measure ───────────────────────────────────────▲
                   └─ averages, in the order of the next forward pass ──────► multiplied by it, applied

Every rank finds the same factor from the same measures, so nobody has to agree on it. Ranks that have shards of a model
tell each other the measures of these; they do so at once, because they have to do it together.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from legato.exchange.measure import Measure, total
from legato.torch.scheduling.gradients import Factor, GradientState, PendingGradient
from legato.torch.scheduling.hooks import Schedule
from legato.torch.scheduling.parameters import ScheduledParameter, ScheduledParameters
from legato.torch.scheduling.shards import mesh_of, over_shards
from legato.torch.sync.synchronizer import is_shard, local_of

Parameters = nn.Module | torch.Tensor | Iterable[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A gradient whose average is not here."""

    home: ScheduledParameters
    each: ScheduledParameter
    factors: tuple[Factor, ...]
    """Those that were left with it before."""

    def measure(self) -> Measure:
        measure = self.home.measure(self.each)
        for factor in self.factors:
            measure = measure.scaled(factor.value)
        return measure


class MeasuredGradients:
    """The gradients of some parameters. Those under way are measured where they are summed; the others are here."""

    def __init__(
        self, gradients: Sequence[torch.Tensor], terms: Sequence[_UnderWay | Measure], mesh: DeviceMesh | None
    ) -> None:
        """`mesh` is that of the ranks which have the others of their shards."""
        self._gradients = gradients
        self._terms = terms
        self._mesh = mesh
        self.devices = list(dict.fromkeys(gradient.device for gradient in gradients))
        self.dtype = reduce(torch.promote_types, [gradient.dtype for gradient in gradients])

    @classmethod
    def of(cls, parameters: Sequence[torch.Tensor]) -> "MeasuredGradients | None":
        """None where they are not all averages of a schedule, or not measured: then somebody has to wait for them.

        What is not measured now is from the next step on, where that is possible.
        """
        gradients, terms = [], []
        for parameter in parameters:
            if (gradient := parameter.grad) is None:
                continue
            term = _term(parameter, gradient)
            if term is None:
                return None
            gradients.append(local_of(gradient) if isinstance(term, Measure) else gradient)
            terms.append(term)
        if not gradients:
            return None
        made = cls(gradients, terms, mesh_of(parameters))
        if made._mesh is not None:
            made.measures  # noqa: B018 - now, since all ranks of the mesh are here, and not all may ask for them later
        return made

    @cached_property
    def measures(self) -> list[Measure]:
        """Of each gradient; waits for them, but for no average."""
        here = [term if isinstance(term, Measure) else term.measure() for term in self._terms]
        return over_shards(self._mesh, here)

    @property
    def total(self) -> Measure:
        return total(self.measures)

    def multiply(self, find: Callable[[], float]) -> None:
        """By what `find` finds, which may wait for measures: at once where gradients are here, otherwise later.

        Nobody can measure a gradient any more when it has been applied: so whatever is found, they are measured before.
        """

        def found() -> float:
            self.measures  # noqa: B018 - waits for them
            return find()

        factor = Factor(found)
        here = []
        for gradient, term in zip(self._gradients, self._terms, strict=True):
            if isinstance(term, Measure):
                here.append(gradient)
            else:
                term.each.factors = (*term.each.factors, factor)
        if here and factor.value != 1.0:
            torch._foreach_mul_(here, factor.value)

    def keep(self) -> None:
        """Measure them before they are applied, also if nobody asks before."""
        self.multiply(lambda: 1.0)


def _term(parameter: torch.Tensor, gradient: torch.Tensor) -> _UnderWay | Measure | None:
    known = Schedule.owning(parameter)
    # The largest magnitude of a complex number is not that of its reals.
    if known is None or gradient.layout is not torch.strided or gradient.dtype.is_complex:
        return None
    home, each = known
    home.synchronizer.set_measured()
    is_measured = home.synchronizer.is_measured(each.index)
    # Where it is not measured, all ranks have torch measure it: also one that has looked at it, or bits would differ.
    # But torch's functions fail on a rank that has nothing of a sharded parameter.
    if each.due is not None or not (is_measured or is_shard(gradient)):
        return None
    if isinstance(gradient, PendingGradient):
        if is_measured and each.state is GradientState.IN_FLIGHT:
            return _UnderWay(home, each, each.factors)
        if not is_shard(gradient):
            return None
    return home.synchronizer.measure_here(each.index, local_of(gradient))


def listed(parameters: Parameters) -> list[torch.Tensor]:
    """What a user may give for parameters: a model, one, or several."""
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def is_measurable(norm_type: float) -> bool:
    """Whether measures tell a norm of this type."""
    return norm_type in (2.0, math.inf)
