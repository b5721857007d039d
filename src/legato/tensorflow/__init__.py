"""Legato for TensorFlow 2, eager and in graphs.

import legato.tensorflow as lg
lg.init()
model, optimizer = lg.schedule(model, optimizer)

Scripts written for Horovod or BytePS run with `import legato.tensorflow as hvd` (docs/tensorflow.md).
"""

from legato.tensorflow.api import (
    check,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    typed_errors,
)
from legato.tensorflow.collectives import (
    Average,
    Compression,
    ReduceOp,
    Sum,
    allreduce,
    broadcast,
    broadcast_variables,
    push_pull,
)
from legato.tensorflow.optimizer import DistributedOptimizer
from legato.tensorflow.schedule import current_plan, flush, schedule, unschedule
from legato.tensorflow.tape import DistributedGradientTape

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ReduceOp",
    "Sum",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "check",
    "current_plan",
    "flush",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "schedule",
    "shutdown",
    "size",
    "typed_errors",
    "unschedule",
]
