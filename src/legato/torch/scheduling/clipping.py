"""Clipping by the global norm, and other reductions of gradients, that do not wait for the averages."""

import math
from functools import partial

import torch
from torch import nn

from legato.errors import InputError
from legato.exchange.measure import REDUCTIONS, Measure
from legato.torch.scheduling.gradients import Pending
from legato.torch.scheduling.measures import MeasuredGradients, Parameters, is_measurable, listed
from legato.torch.scheduling.shards import mesh_of, over_shards
from legato.torch.sync.synchronizer import is_shard, local_of

_EPSILON = 1e-6
"""What torch adds to a norm before it divides by it."""


def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """What torch.nn.utils.clip_grad_norm_ does, of parameters or of a model, without waiting for the averages.

    The ranks that sum a gradient tell the norm of what they have summed. Updates then multiply the averages by the
    coefficient, as each arrives. The answer is a tensor that waits for the norm when it is read. Where gradients cannot
    be measured (the first step; `c10d` with a policy that does not sum in halves; another norm than 2 or infinity)
    torch's own function is called, which waits for all of them.
    """
    given = listed(parameters)
    norm_type = float(norm_type)
    gradients = MeasuredGradients.of(given) if is_measurable(norm_type) else None
    if gradients is None:
        found = nn.utils.clip_grad_norm_(given, max_norm, norm_type, error_if_nonfinite, foreach)
        return found.full_tensor() if is_shard(found) else found  # type: ignore[attr-defined]
    norm = Pending.of(
        torch.full((), math.nan, dtype=gradients.dtype, device=gradients.devices[0]),
        partial(_norm, gradients, norm_type, gradients.devices[0]),
    )
    if error_if_nonfinite and not math.isfinite(norm.item()):
        raise RuntimeError(
            f"the norm of the gradients is {norm.item()}, so they cannot be clipped; with error_if_nonfinite=False "
            "they are multiplied all the same"
        )
    gradients.multiply(partial(_coefficient, gradients, norm_type, float(max_norm)))
    return norm


def reduce_gradients(parameters: Parameters, reduction: str) -> torch.Tensor:
    """A number for each gradient, when it has been averaged: its `sum of squares`, its `max` (the largest magnitude) or
    whether it is `finite` (1 or 0).

    The answer is a float64 tensor on the CPU that waits when it is read, for no average where `clip_grad_norm_` would
    not. Parameters without a gradient are left out.
    """
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction {reduction!r} is unknown; accepted: {', '.join(REDUCTIONS)}")
    of = REDUCTIONS[reduction]
    given = [parameter for parameter in listed(parameters) if parameter.grad is not None]
    gradients = MeasuredGradients.of(given)
    if gradients is None:
        here = [_measure(local_of(parameter.grad)) for parameter in given if parameter.grad is not None]
        return torch.tensor([of(measure) for measure in over_shards(mesh_of(given), here)], dtype=torch.float64)
    gradients.keep()
    return Pending.of(
        torch.full((len(given),), math.nan, dtype=torch.float64),
        lambda: torch.tensor([of(measure) for measure in gradients.measures], dtype=torch.float64),
    )


def _measure(gradient: torch.Tensor) -> Measure:
    """Waits for the average."""
    magnitudes = gradient.detach().abs().double()
    return Measure(magnitudes.square().sum().item(), magnitudes.max().item() if magnitudes.numel() else 0.0)


def _norm(gradients: MeasuredGradients, norm_type: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(gradients.total.norm(norm_type), dtype=gradients.dtype, device=device)


def _coefficient(gradients: MeasuredGradients, norm_type: float, max_norm: float) -> float:
    """As torch computes it, in the gradients' precision."""
    norm = _norm(gradients, norm_type, torch.device("cpu"))
    return float(torch.clamp(max_norm / (norm + _EPSILON), max=1.0))
