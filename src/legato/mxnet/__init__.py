"""Legato for MXNet: communication scheduling under Gluon's `Trainer` and `Module.fit`.

`ScheduledKVStore` schedules MXNet's own parameter servers. The rest is BytePS's interface over legato's engine: scripts
that `import byteps.mxnet as bps` run with `import legato.mxnet as bps` (docs/mxnet.md).
"""

from legato.mxnet.api import ScheduledKVStore
from legato.mxnet.collectives import broadcast_parameters, byteps_declare_tensor, byteps_push_pull
from legato.mxnet.optimizer import DistributedOptimizer
from legato.mxnet.trainer import DistributedTrainer
from legato.mxnet.worker import (
    check,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
    typed_errors,
)

__all__ = [
    "DistributedOptimizer",
    "DistributedTrainer",
    "ScheduledKVStore",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "check",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "typed_errors",
]
