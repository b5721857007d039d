"""Loss scaling that does not wait for the averages: whether all are finite is known where they are summed."""

import math
from functools import partial
from typing import Any

import torch

from legato.errors import InputError
from legato.torch.scheduling.attachments import is_covered
from legato.torch.scheduling.gradients import Pending
from legato.torch.scheduling.hooks import Schedule
from legato.torch.scheduling.measures import MeasuredGradients
from legato.torch.sync.elastic import ElasticSynchronizer

_FUSED = "_step_supports_amp_scaling"
"""How an optimizer says that it unscales gradients itself, in the call of `step`."""


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler; with a scheduled optimizer, `step` waits until all ranks have sent their gradients, not
    until the averages are here. All ranks skip the same steps.

    Where gradients cannot be measured (`clip_grad_norm_` says where), it waits for them as torch's does.
    """

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        _check_is_shared(self, optimizer)
        if not getattr(optimizer, _FUSED, False) or not is_covered(optimizer):
            return super().step(optimizer, *args, **kwargs)
        # Its updates come after this call: what they unscale, they would not know any more.
        setattr(optimizer, _FUSED, False)
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            setattr(optimizer, _FUSED, True)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        is_refused = not allow_fp16 and any(
            parameter.grad is not None and parameter.grad.dtype is torch.float16 for parameter in parameters
        )
        gradients = None if is_refused else MeasuredGradients.of(parameters)
        if gradients is None:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        gradients.multiply(lambda: float(inv_scale))
        return {
            device: Pending.of(torch.full((), math.nan, device=device), partial(_overflow, gradients, device))
            for device in gradients.devices
        }


def _check_is_shared(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Ranks whose scales differ would average gradients of different scales."""
    known = Schedule.owning(optimizer.param_groups[0]["params"][0])
    synchronizer = None if known is None else known[0].synchronizer
    if isinstance(synchronizer, ElasticSynchronizer) and not synchronizer.is_shared(scaler):
        raise InputError(
            "LEGATO_ELASTIC: a rank that joins later has to begin with the scale of the others: make the scaler first, "
            "and call schedule(model, optimizer, state=[scaler])"
        )


def _overflow(gradients: MeasuredGradients, device: torch.device) -> torch.Tensor:
    """1 where a gradient is not finite."""
    return torch.tensor(0.0 if gradients.total.is_finite else 1.0, device=device)
