"""Pending shards: gradients on their way, of parameters that torch has sharded."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch.distributed.tensor import DTensor

from legato.torch.scheduling.gradients import PendingGradient
from legato.torch.sync.synchronizer import local_of


class PendingShard(PendingGradient, DTensor):
    """A pending gradient that is a DTensor, because FSDP adds to no other.

    It adds to this rank's shard, `gradient._local_tensor += more`, without a torch function: so whoever takes the shard
    waits for it, too.
    """

    @classmethod
    def of(cls, like: torch.Tensor, settle: Callable[[], torch.Tensor]) -> Self:
        made: Any = DTensor.__new__(cls, local_of(like), like._spec, requires_grad=False)  # type: ignore[attr-defined]
        pending: Self = made
        pending._settle = settle
        return pending

    @property
    def _local_tensor(self) -> torch.Tensor:
        return local_of(self._settle())

    @_local_tensor.setter
    def _local_tensor(self, local: torch.Tensor) -> None:
        """Nothing to keep: it is that of the gradient which `settle` gives, added to in place, or says what is where
        before there is one."""
