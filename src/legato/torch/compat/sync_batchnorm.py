"""Batch normalisation over the batches of all ranks, as if they were one."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from legato.errors import InputError
from legato.torch.compat.differentiable import AllReduce, apply
from legato.torch.compat.operations import Reduction, Sum, operations


class SyncBatchNorm(_BatchNorm):
    """A drop-in for BatchNorm1d, 2d and 3d, and for torch's and Horovod's SyncBatchNorm.

    Each rank reduces its batch to a count, a mean and a variance per channel. These small rows are gathered by a sum
    that gradients flow through, and combined; so backward needs no formula of its own, and no large sum of squares
    loses digits.
    """

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """The module with each batch normalisation in it replaced; parameters and buffers are the same objects."""
        if process_group is not None:
            raise InputError("process_group is torch's; statistics here are those of all ranks")
        converted = module
        if isinstance(module, _BatchNorm):
            converted = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
            converted.weight, converted.bias = module.weight, module.bias
            converted.running_mean, converted.running_var = module.running_mean, module.running_var
            converted.num_batches_tracked = module.num_batches_tracked
            converted.training = module.training
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child))
        return converted

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        from_batch = self.training or self.running_mean is None
        if not from_batch or operations().size == 1:
            return super().forward(input)
        count, mean, variance = self._statistics(input)
        if self.training and self.track_running_stats:
            self._track(count, mean.detach(), variance.detach())
        shape = (1, -1, *(1,) * (input.dim() - 2))
        normal = (input - mean.view(shape)) * torch.rsqrt(variance.view(shape) + self.eps)
        if self.weight is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InputError(f"input has {input.dim()} dimensions; a batch of channels has at least 2")

    def _statistics(self, input: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
        """How many values each channel has on all ranks, their mean, and their variance around it."""
        wide = input if input.dtype is torch.float64 else input.float()
        dims = [dim for dim in range(input.dim()) if dim != 1]
        count = input.numel() // input.shape[1]
        if count:
            variance, mean = torch.var_mean(wide, dims, correction=0)
        else:
            mean = variance = wide.sum(dims)  # of nothing: zeros, that still take part in backward
        everybody = operations()
        row = torch.cat([mean, variance, mean.new_full((1,), count)])
        place = functional.one_hot(torch.tensor(everybody.rank), everybody.size).to(row)
        # Each rank adds its row to the others' zeros: exact, and all rows have the same length anyway.
        (table,) = apply(AllReduce, everybody, None, Reduction(op=Sum), place.outer(row))
        means, variances, counts = table.split([len(mean), len(mean), 1], dim=1)
        total = counts.sum()
        if total <= 1:
            raise InputError("batch normalisation needs more than 1 value per channel over all ranks in training")
        mean = (counts * means).sum(0) / total
        return total.item(), mean, (counts * (variances + (means - mean) ** 2)).sum(0) / total

    @torch.no_grad()
    def _track(self, count: float, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_((variance * (count / (count - 1))).to(self.running_var), share)
